process CLEARSHOT_RESTORE {
    tag "$meta.id"
    label 'process_medium'
    container 'clearshot'

    input:
    tuple val(meta), path(image)

    output:
    tuple val(meta), path("restored/*"), emit: image
    path "versions.yml",                 emit: versions

    when:
    task.ext.when == null || task.ext.when

    script:
    def args = task.ext.args ?: ''
    """
    clearshot restore $image -o restored --threads $task.cpus $args

    cat <<-END_VERSIONS > versions.yml
    "${task.process}":
        clearshot: \$(clearshot --version | cut -d' ' -f2)
    END_VERSIONS
    """

    stub:
    """
    mkdir restored
    touch restored/$image

    cat <<-END_VERSIONS > versions.yml
    "${task.process}":
        clearshot: \$(clearshot --version | cut -d' ' -f2)
    END_VERSIONS
    """
}

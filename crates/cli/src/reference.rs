//! Generates the reference of the command line from the descriptions of the commands.

use clap::{Arg, Command};
use std::fmt::Write;

/// Every verb with its arguments, as Markdown.
pub fn markdown(program: &Command) -> String {
    let mut out = String::from(
        "# The command line\n\nMade from the program's own descriptions, which `clearshot VERB --help` prints too.\n\n| verb | what it does |\n|---|---|\n",
    );
    let verbs: Vec<&Command> = program.get_subcommands().filter(|c| c.get_name() != "help").collect();
    for verb in &verbs {
        let (name, about) = (verb.get_name(), about(verb));
        writeln!(out, "| [`{name}`](#clearshot-{name}) | {about} |").expect("writing to a string");
    }
    for verb in verbs {
        writeln!(out, "\n## clearshot {}\n\n{}\n", verb.get_name(), about(verb))
            .expect("writing to a string");
        out.push_str("| argument | default | meaning |\n|---|---|---|\n");
        for argument in verb.get_arguments().filter(|a| !a.is_hide_set() && a.get_id() != "help") {
            writeln!(out, "| `{}` | {} | {} |", name(argument), default(argument), meaning(argument))
                .expect("writing to a string");
        }
        if let Some(more) = verb.get_after_help() {
            writeln!(out, "\n```text\n{more}\n```").expect("writing to a string");
        }
    }
    out
}

fn about(verb: &Command) -> String {
    cell(&verb.get_about().map(ToString::to_string).unwrap_or_default())
}

fn name(argument: &Arg) -> String {
    let values = argument.get_value_names().map(|names| names.iter().map(|n| n.as_str()).collect::<Vec<_>>());
    let takes = argument.get_num_args().is_some_and(|n| n.takes_values());
    let value = values.filter(|_| takes).map(|v| v.join(" ")).unwrap_or_default();
    let many = argument.get_num_args().is_some_and(|n| n.max_values() > 1)
        || matches!(argument.get_action(), clap::ArgAction::Append);
    let dots = if many && takes { "..." } else { "" };
    let text = match argument.get_long() {
        Some(long) if value.is_empty() => format!("--{long}"),
        Some(long) => format!("--{long} {value}"),
        None => format!("{value}{dots}"),
    };
    cell(&text)
}

fn default(argument: &Arg) -> String {
    let values: Vec<String> =
        argument.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
    let is_switch = !argument.get_num_args().is_some_and(|n| n.takes_values());
    if values.is_empty() || is_switch { String::new() } else { format!("`{}`", cell(&values.join(" "))) }
}

fn meaning(argument: &Arg) -> String {
    let text = argument.get_long_help().or_else(|| argument.get_help()).map(ToString::to_string);
    cell(&text.unwrap_or_default())
}

fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// `CLEARSHOT_BLESS=1` writes the file again.
    #[test]
    fn the_reference_is_that_of_the_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");
        let mut program = crate::Cli::command();
        program.build();
        let now = super::markdown(&program);
        if std::env::var_os("CLEARSHOT_BLESS").is_some() {
            std::fs::write(path, &now).expect("docs/reference can be written");
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            kept == now,
            "docs/reference/cli.md is stale: CLEARSHOT_BLESS=1 cargo test -p clearshot-cli writes it again"
        );
    }
}

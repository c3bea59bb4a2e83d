//! CT and MR as users meet them: sections that scanners see, slices from projections, and a diffusion network that is given the measurement in each of three ways.

#[allow(dead_code)]
mod measured;
mod program;

use clearshot_image::DType;
use measured::{read, write};
use program::{folder, must, refused};
use serde_json::Value;

fn error(a: &[f64], b: &[f64]) -> f64 {
    (a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / a.len() as f64).sqrt()
}

#[test]
fn scanners_look_at_scenes() {
    let at = folder("medical_synth");
    let made = |out: &str, options: &str| {
        must(&format!("synth --scene phantom --size 64 --count 1 --seed 3 {options} --out {out}"), &at);
        let of = |kind: &str| read(at.join(out).join(kind).join("phantom_0000.tif")).1;
        error(&of("noisy"), &of("truth"))
    };
    // More photons, more angles, less noise and more rows of k-space are nearer to the truth.
    let ct = [("a", "--photons 1000"), ("b", "--photons 100000"), ("c", "--photons 100000 --views 20")]
        .map(|(out, options)| made(out, &format!("--scanner ct {options}")));
    assert!(ct[1] < 0.7 * ct[0] && ct[1] < 0.7 * ct[2], "{ct:?}");
    let mr = [("d", "--mr-noise 0.2"), ("e", "--mr-noise 0.02"), ("f", "--mr-noise 0.02 --acceleration 4")]
        .map(|(out, options)| made(out, &format!("--scanner mr {options}")));
    assert!(mr[1] < 0.2 * mr[0] && mr[1] < 0.5 * mr[2], "{mr:?}");
    // Magnitudes: noise where there is nothing has the mean of Rayleigh's law.
    let (noisy, truth) =
        (read(at.join("d/noisy/phantom_0000.tif")).1, read(at.join("d/truth/phantom_0000.tif")).1);
    let empty: Vec<f64> = noisy.iter().zip(&truth).filter(|(_, t)| **t == 0.0).map(|(n, _)| *n).collect();
    let mean = empty.iter().sum::<f64>() / empty.len() as f64;
    assert!(empty.len() > 500 && (mean - 0.2 * (0.5 * std::f64::consts::PI).sqrt()).abs() < 0.02, "{mean}");

    // Scenes that fill the square: what CT does not see is in neither file, and what it sees has no streaks of what it does not.
    let line = "synth --scene nuclei --labels --size 64 --seed 3 --scanner ct --photons 1e6 --out e";
    assert!(must(line, &at).contains("1 scene in"));
    let of = |kind: &str| read(at.join("e").join(kind).join("nuclei_0000.tif"));
    let (image, truth) = of("truth");
    let (noisy, labels) = (of("noisy").1, of("labels").1);
    let outside = |i: usize| (i / 64).abs_diff(32).pow(2) + (i % 64).abs_diff(32).pow(2) > 32 * 32;
    let (out, inside): (Vec<usize>, Vec<usize>) = (0..64 * 64).partition(|&i| outside(i));
    assert!(out.iter().all(|&i| truth[i] == 0.0 && noisy[i] == 0.0 && labels[i] == 0.0));
    assert!(inside.iter().any(|&i| labels[i] > 0.0));
    let inner = |values: &[f64]| inside.iter().map(|&i| values[i]).collect::<Vec<f64>>();
    let apart = error(&inner(&noisy), &inner(&truth));
    assert!(apart < 0.06, "{apart}");
    let record = image.description.provenance.expect("a record")["parameters"].clone();
    assert_eq!((&record["scanner"]["kind"], &record["scanner"]["photons"]), (&"ct".into(), &1e6.into()));
    assert!(record.get("peak").is_none() && record.get("read_noise").is_none(), "{record}");

    let line = "synth --scene phantom --out x";
    assert!(refused(&format!("{line} --scanner ct --acceleration 2"), &at).contains("--acceleration"));
    assert!(refused(&format!("{line} --views 20"), &at).contains("--scanner"));
    assert!(refused(&format!("{line} --scanner mr --peak 20"), &at).contains("--peak"));
    for size in ["40x60", "4x60x60"] {
        let said = refused(&format!("{line} --scanner ct --size {size}"), &at);
        assert!(said.contains(&format!("--size {size}")) && said.contains("--size 60"), "{said}");
    }
    assert!(refused(&format!("{line} --scanner ct --views 0"), &at).contains("--views"));
    assert!(refused(&format!("{line} --scanner mr --acceleration 0.5"), &at).contains("--acceleration"));
    assert!(refused(&format!("{line} --scanner ct --photons=-1"), &at).contains("--photons"));
}

/// Two slices of a disk off the middle, at two values, in counts with flats and darks.
#[test]
fn projections_become_slices() {
    let at = folder("medical_reconstruct");
    let (places, views, centre) = (80, 60, 43.0);
    let integral = |slice: f64, view: usize, place: usize| {
        let (sin, cos) = (std::f64::consts::PI * view as f64 / views as f64).sin_cos();
        let off = place as f64 - centre - (8.0 * cos - 5.0 * sin);
        0.02 * (1.0 + slice) * 2.0 * (14.0f64.powi(2) - off * off).max(0.0).sqrt()
    };
    let flat = |place: usize| 20_000.0 + 50.0 * place as f64;
    let mut counts = vec![];
    for slice in 0..2 {
        for view in 0..views {
            counts
                .extend((0..places).map(|p| 100.0 + flat(p) * (-integral(f64::from(slice), view, p)).exp()));
        }
    }
    write(&at.join("p.tif"), "ZYX", &[2, views, places], DType::F32, &counts);
    let flats: Vec<f64> = (0..3 * places).map(|i| 100.0 + flat(i % places)).collect();
    write(&at.join("flats.tif"), "YX", &[3, places], DType::F32, &flats);
    write(&at.join("darks.tif"), "YX", &[2, places], DType::F32, &vec![100.0; 2 * places]);
    let beside = "--flats flats.tif --darks darks.tif";
    let said: Value =
        serde_json::from_str(&must(&format!("reconstruct p.tif -o s.tif {beside} --json"), &at))
            .expect("JSON");
    let found = said["centres"][0].as_f64().expect("a number");
    assert!((found - centre).abs() <= 0.5 && said["views"] == 60, "{said}");
    let (image, slices) = read(at.join("s.tif"));
    assert_eq!(image.shape(), [2, places, places]);
    let value = |slices: &[f64], z: usize, y: i64, x: i64| {
        slices[(z * places + (places as i64 / 2 + y) as usize) * places + (places as i64 / 2 + x) as usize]
    };
    for z in 0..2 {
        let wanted = 0.02 * (1.0 + z as f64);
        assert!((value(&slices, z, 5, 8) - wanted).abs() < 0.05 * wanted, "{}", value(&slices, z, 5, 8));
        assert!(value(&slices, z, -20, -20).abs() < 0.05 * wanted);
    }
    // A given centre, fewer angles, and places that are averaged.
    must(&format!("reconstruct p.tif -o t.tif {beside} --centre 43 --every 4 --bin 2 --filter hann"), &at);
    let (image, few) = read(at.join("t.tif"));
    assert_eq!(image.shape(), [2, 40, 40]);
    let pixel = few[40 * 40 + (20 + 2) * 40 + 20 + 4];
    assert!((pixel - 2.0 * 0.04).abs() < 0.02, "{pixel}");
    // Line integrals as they are, with angles from a file.
    let angles: Vec<String> = (0..views).map(|i| format!("{}", 180.0 * i as f64 / views as f64)).collect();
    std::fs::write(at.join("angles.txt"), angles.join("\n")).expect("a file");
    let sinogram: Vec<f64> = (0..views * places).map(|i| integral(0.0, i / places, i % places)).collect();
    write(&at.join("l.tif"), "YX", &[views, places], DType::F32, &sinogram);
    must("reconstruct l.tif -o u.tif --angles angles.txt --centre 43", &at);
    let plain = read(at.join("u.tif"));
    assert_eq!(plain.0.shape(), [places, places]);
    assert!((value(&plain.1, 0, 5, 8) - 0.02).abs() < 0.001);

    std::fs::write(at.join("few.txt"), "0 1 2").expect("a file");
    let line = |rest: &str| format!("reconstruct p.tif -o x.tif {rest}");
    assert!(refused(&line("--angles few.txt"), &at).contains("3 angles"));
    assert!(refused(&line("--flats l.tif --filter box"), &at).contains("shepp-logan"));
    assert!(refused(&line("--flats flats.tif --darks t.tif"), &at).contains("t.tif"));
    let said = refused(&line("--bin 20"), &at);
    assert!(said.contains("--bin 20") && said.contains("give 10 or less"), "{said}");
    let said = refused(&line("--centre 200 --bin 2"), &at);
    assert!(said.contains("--centre 200") && said.contains("0 to 79"), "{said}");
    assert!(!at.join("x.tif").exists());
    must(&format!("{} --force", line("--centre 0 --bin 2")), &at);
    write(&at.join("narrow.tif"), "YX", &[9, 5], DType::F32, &[1.0; 45]);
    let said = refused("reconstruct narrow.tif -o y.tif", &at);
    assert!(said.contains("narrow.tif: 5 columns") && !said.contains("--bin"), "{said}");
}

/// No file that is read is written, and what cannot be written is refused before the work: these projections have no centre of rotation that could be found.
#[test]
fn outputs_are_checked_before_the_work() {
    let at = folder("medical_outputs");
    let names = ["p.tif", "f.tif", "d.tif"];
    for (name, value) in names.iter().zip([9.0, 10.0, 1.0]) {
        write(&at.join(name), "YX", &[20, 12], DType::F32, &vec![value; 240]);
    }
    std::fs::write(at.join("a.txt"), (0..20).map(|i| format!("{}\n", 9 * i)).collect::<String>())
        .expect("a file");
    for output in ["p.tif", "f.tif", "d.tif", "./p.tif", "a.txt"] {
        let line =
            format!("reconstruct p.tif -o {output} --flats f.tif --darks d.tif --angles a.txt --force");
        let before = std::fs::read(at.join(output)).expect("a file");
        let said = refused(&line, &at);
        assert!(said.contains("replace its own input"), "{line}: {said}");
        assert_eq!(before, std::fs::read(at.join(output)).expect("a file"));
    }
    let said = refused("reconstruct p.tif -o d.tif", &at);
    assert!(said.contains("d.tif: exists already") && said.contains("--force"), "{said}");
    write(&at.join("zero.tif"), "YX", &[20, 12], DType::F32, &[0.0; 240]);
    let said = refused("reconstruct zero.tif -o zero.png", &at);
    assert!(said.contains("zero.png") && !said.contains("centre"), "{said}");
    let said = refused("reconstruct zero.tif -o slice.tif", &at);
    assert!(said.contains("zero.tif: plane 0") && said.contains("--centre"), "{said}");
}

/// A stack of projections that lies the other way round is computed, and the way out is named.
#[test]
fn stacks_of_projections_in_another_order_are_noticed() {
    let at = folder("medical_turned");
    let (slices, views, places) = (12, 16, 40);
    let integral = |slice: usize, view: usize, place: usize| {
        let (sin, cos) = (std::f64::consts::PI * view as f64 / views as f64).sin_cos();
        let radius = 4.0 + slice as f64;
        let off = place as f64 - 20.0 - 2.0 * (cos - sin);
        0.02 * 2.0 * (radius.powi(2) - off * off).max(0.0).sqrt()
    };
    let mut sinograms = vec![];
    let mut projections = vec![];
    for slice in 0..slices {
        for view in 0..views {
            sinograms.extend((0..places).map(|p| integral(slice, view, p)));
        }
    }
    for view in 0..views {
        for slice in 0..slices {
            projections.extend((0..places).map(|p| integral(slice, view, p)));
        }
    }
    write(&at.join("s.tif"), "ZYX", &[slices, views, places], DType::F32, &sinograms);
    write(&at.join("p.tif"), "ZYX", &[views, slices, places], DType::F32, &projections);
    let said = |file: &str| {
        let out = program::clearshot(&format!("reconstruct {file} -o {file}.npy --centre 20"), &at);
        assert!(out.status.success(), "{file}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stderr).expect("text")
    };
    assert_eq!(said("s.tif"), "");
    assert!(said("p.tif").contains("p.tif: if its axes are (angle, row, column), swap the first two"));
    std::fs::write(at.join("a.txt"), "0 10 20 30 40 50 60 70 80 90 100 110 120 130 140 150").expect("a file");
    let line = "reconstruct p.tif -o x.tif --angles a.txt";
    assert!(refused(line, &at).contains("16 angles, where p.tif has 12 rows; if its axes are (angle"));
}

const SHORT: &str = "experiment=medical task.prediction=sample data.inputs=d/noisy data.targets=d/truth trainer.crop=16 trainer.batch=4 trainer.iterations=6 model.network.network.block_out_channels=[8,8,8] \
    model.network.width=8 validation.crop=16 validation.images=2 validation.every=6 calibration.images=0 records.every=2 schedule.warm_up=2 --quiet";

/// Each way trains, restores files with its uncertainty, and makes the same of them from run to run.
#[test]
fn measurements_are_given_in_three_ways() {
    let at = folder("medical_ways");
    must("synth --scene phantom --size 32 --count 10 --scanner mr --out d", &at);
    let mut results: Vec<Vec<f64>> = vec![];
    for way in ["concat", "crossattn", "adm"] {
        must(&format!("train {SHORT} model.network.conditioning_key={way} --out {way}"), &at);
        let restored = |out: &str, sampler: &str| {
            let model = format!(
                "--model {way}/best.clearshot --method model --device cpu --threads 1 --samples 2 --std --estimate samples"
            );
            must(&format!("restore d/noisy/phantom_0000.tif -o {out} {model} {sampler} --quiet"), &at);
            read(at.join(out)).1
        };
        let ddim = restored(&format!("{way}-ddim.tif"), "--sampler ddim --steps 3");
        assert!(ddim == restored(&format!("{way}-again.tif"), "--sampler ddim --steps 3"), "{way}");
        assert!(ddim != restored(&format!("{way}-ddpm.tif"), "--sampler ddpm --steps 3"), "{way}");
        assert!(ddim.iter().all(|v| v.is_finite()) && results.iter().all(|other| *other != ddim), "{way}");
        results.push(ddim);
    }
    let said = refused(&format!("train {SHORT} model.network.conditioning_key=film --out film"), &at);
    assert!(said.contains("conditioning_key") && said.contains("crossattn"), "{said}");
}

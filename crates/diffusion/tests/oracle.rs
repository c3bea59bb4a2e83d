//! Samplers against exact results: for normally distributed values the denoiser, the solution of the ODE and the
//! distribution have closed forms.

use clearshot_diffusion::host::{self, HostEstimate};
use clearshot_diffusion::sampler::{
    Call, Churn, Ddim, Ddpm, DpmSolver, Program, SAMPLERS, Second, Third, Variance, ddim, ddpm,
    dpm_solver_pp, euler, heun, named,
};
use clearshot_diffusion::schedule::{BetaLaw, End, Rounding, Schedule};
use clearshot_diffusion::{Clock, Error, Level, Levels, Spacing};
use clearshot_tensor::noise::Key;

/// The law of the images' values.
const MEAN: f64 = 0.3;
const DEVIATION: f64 = 0.5;

/// E[x0 | x].
fn exact(x: f64, l: &Level) -> f64 {
    let gain = l.alpha * DEVIATION * DEVIATION / (marginal(l) * marginal(l));
    MEAN + gain * (x - l.alpha * MEAN)
}

/// The standard deviation of x.
fn marginal(l: &Level) -> f64 {
    (l.alpha * DEVIATION).hypot(l.sigma)
}

fn denoise(x: &[f64], l: &Level) -> HostEstimate {
    HostEstimate::of(x.iter().map(|&x| exact(x, l)).collect())
}

fn normals(n: usize, step: u32, stream: u32) -> Vec<f64> {
    let mut out = vec![0.0f32; n];
    Key { seed: 5, step, stream }.fill_normal(0, &mut out);
    out.into_iter().map(f64::from).collect()
}

/// Levels from much noise to some, so that errors of the end do not hide those of the method.
fn geometric(from: f64, to: f64, steps: usize) -> Levels {
    let sigma = |i: usize| from * (to / from).powf(i as f64 / steps as f64);
    let list: Vec<Level> = (0..=steps).map(|i| Level::new(1.0, sigma(i), 0.0)).collect();
    Levels::new(&list, Clock::LogSigma).unwrap()
}

/// The error at the end of a deterministic run, where the ODE's solution keeps (x - mean) / deviation.
fn error(levels: &Levels, program: Result<Program, Error>) -> f64 {
    let (first, last) = (levels.start(), levels.end());
    let x = first.alpha * MEAN + 1.3 * marginal(&first);
    let got = host::run(&program.unwrap(), vec![x], denoise, |_| vec![], |_| ()).unwrap()[0];
    (got - (last.alpha * MEAN + 1.3 * marginal(&last))).abs()
}

/// The slope of log error against log steps.
fn order(make: impl Fn(&Levels) -> Result<Program, Error>, preserving: bool) -> f64 {
    let at = |steps: usize| {
        let levels = geometric(10.0, 0.1, steps);
        let levels = if preserving { levels.preserving() } else { levels };
        error(&levels, make(&levels)).ln()
    };
    (at(40) - at(320)) / 8f64.ln()
}

#[test]
fn errors_fall_with_the_order_of_the_method() {
    let solver = |order: usize, second: Second| {
        move |l: &Levels| {
            dpm_solver_pp(l, &DpmSolver { order, second, lower_order_final: false, ..DpmSolver::default() })
        }
    };
    for preserving in [false, true] {
        let near = |got: f64, truth: f64, what: &str| {
            assert!((got - truth).abs() < 0.2, "{what} (preserving: {preserving}): order {got}");
        };
        near(order(|l| heun(l, &Churn::NONE), preserving), 2.0, "Heun");
        near(order(|l| euler(l, &Churn::NONE), preserving), 1.0, "Euler");
        near(order(|l| ddim(l, &Ddim::default()), preserving), 1.0, "DDIM");
        near(order(solver(1, Second::Midpoint), preserving), 1.0, "DPM-Solver++ 1");
        near(order(solver(2, Second::Midpoint), preserving), 2.0, "DPM-Solver++ 2M");
        near(order(solver(2, Second::Heun), preserving), 2.0, "DPM-Solver++ 2, Heun");
    }
}

#[test]
fn one_step_errs_by_one_power_more_than_the_order() {
    // A step of order p from exact values of x and of earlier estimates errs by h^(p + 1). Whole runs of the
    // third order begin with lower ones and show 2.
    let local = |order: usize, third: Third, steps: usize| {
        let levels = geometric(10.0, 0.1, steps).preserving();
        let solver = DpmSolver { order, third, lower_order_final: false, ..DpmSolver::default() };
        let program = dpm_solver_pp(&levels, &solver).unwrap();
        let exact_x = |l: &Level| l.alpha * MEAN + 1.3 * marginal(l);
        let x0 = |i: usize| exact(exact_x(&levels.steps()[i].from), &levels.steps()[i].from);
        let (i, step) = (steps / 2, levels.steps()[steps / 2]);
        let m = program.calls()[i].x;
        let got = m.x * exact_x(&step.from) + m.x0 * x0(i) + m.kept[0] * x0(i - 1) + m.kept[1] * x0(i - 2);
        (got - exact_x(&step.to)).abs().ln()
    };
    let powers =
        [(1, Third::Exact, 2.0), (2, Third::Exact, 3.0), (3, Third::Published, 3.0), (3, Third::Exact, 4.0)];
    for (order, third, truth) in powers {
        let power = (local(order, third, 240) - local(order, third, 960)) / 4f64.ln();
        assert!((power - truth).abs() < 0.15, "order {order}, {third:?}: power {power}");
    }
}

/// Mean and variance of many samples against the prior's, in standard errors; the discretisation's own bias
/// is allowed for by `bias`, a share of the deviation.
fn check_distribution(
    what: &str,
    program: &Program,
    denoiser: impl Fn(&[f64], &Level) -> HostEstimate,
    bias: f64,
) {
    let n = 20_000;
    let first = program.start();
    let x: Vec<f64> = normals(n, 0, 9).iter().map(|z| first.alpha * MEAN + marginal(&first) * z).collect();
    let got = host::run(program, x, denoiser, |step| normals(n, step as u32 + 1, 1), |_| ()).unwrap();
    let mean = got.iter().sum::<f64>() / n as f64;
    let variance = got.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
    let (truth, count) = (DEVIATION * DEVIATION, n as f64);
    let mean_limit = 4.0 * DEVIATION / count.sqrt() + bias * DEVIATION;
    let variance_limit = 4.0 * truth * (2.0 / count).sqrt() + 2.0 * bias * truth;
    assert!((mean - MEAN).abs() < mean_limit, "{what}: mean {mean}");
    assert!((variance - truth).abs() < variance_limit, "{what}: variance {variance} for {truth}");
}

#[test]
fn every_sampler_reaches_the_distribution() {
    let s = Schedule::new(BetaLaw::Linear, [1e-4, 0.02], 1000).unwrap();
    let whole = s.levels(Spacing::Linspace, 1000, End::Clean).unwrap();
    let some = s.levels(Spacing::Trailing, 200, End::Clean).unwrap();
    let karras = s.karras_levels(s.range(), 7.0, 60, Rounding::None, End::Clean).unwrap();
    let edm = Levels::karras([0.002, 80.0], 7.0, 60).unwrap();
    let many = Levels::karras([0.002, 80.0], 7.0, 400).unwrap();
    let churn = Churn { amount: 20.0, range: [0.01, 50.0], noise: 1.0 };
    let solver = |order, stochastic| DpmSolver { order, stochastic, ..DpmSolver::default() };
    let of = |variance| Ddpm { variance, temperature: 1.0 };
    let eta = |eta| Ddim { eta, clipped_direction: false };
    let programs = [
        ("DDPM, small variance", ddpm(&whole, &of(Variance::FixedSmall)), 0.01),
        ("DDPM, large variance", ddpm(&whole, &of(Variance::FixedLarge)), 0.01),
        ("DDPM, exploding", ddpm(&whole.exploding(), &of(Variance::FixedSmall)), 0.01),
        ("DDIM", ddim(&some, &eta(0.0)), 0.02),
        ("DDIM, half stochastic", ddim(&whole, &eta(0.5)), 0.01),
        ("DDIM, stochastic", ddim(&whole, &eta(1.0)), 0.01),
        ("Euler", euler(&many, &Churn::NONE), 0.01),
        ("Euler, churn", euler(&many, &churn), 0.01),
        ("Heun", heun(&edm, &Churn::NONE), 0.002),
        ("Heun, churn", heun(&edm, &churn), 0.01),
        ("Heun, preserving", heun(&karras, &Churn::NONE), 0.002),
        ("Heun, preserving, churn", heun(&karras, &churn), 0.01),
        ("DPM-Solver++ 1", dpm_solver_pp(&some, &solver(1, false)), 0.02),
        ("DPM-Solver++ 2M Karras", dpm_solver_pp(&karras, &solver(2, false)), 0.005),
        ("DPM-Solver++ 2M, exploding", dpm_solver_pp(&edm, &solver(2, false)), 0.005),
        ("DPM-Solver++ 3", dpm_solver_pp(&karras, &solver(3, false)), 0.005),
        ("SDE-DPM-Solver++ 1", dpm_solver_pp(&whole, &solver(1, true)), 0.01),
        ("SDE-DPM-Solver++ 2M", dpm_solver_pp(&karras, &solver(2, true)), 0.01),
    ];
    for (what, program, bias) in programs {
        check_distribution(what, &program.unwrap(), denoise, bias);
    }
}

/// A prior of two normal laws: share, mean and deviation of each.
const MODES: [[f64; 3]; 2] = [[0.3, -0.8, 0.1], [0.7, 0.6, 0.2]];

/// E[x0 | x] under the two.
fn of_modes(x: f64, l: &Level) -> f64 {
    let parts = MODES.map(|[share, mean, deviation]| {
        let (spread, off) = ((l.alpha * deviation).hypot(l.sigma), x - l.alpha * mean);
        let log = share.ln() - spread.ln() - 0.5 * (off / spread).powi(2);
        (log, mean + l.alpha * deviation * deviation / (spread * spread) * off)
    });
    let second = 1.0 / (1.0 + (parts[0].0 - parts[1].0).exp());
    (1.0 - second) * parts[0].1 + second * parts[1].1
}

#[test]
fn two_modes_are_reached_in_their_shares() {
    let s = Schedule::new(BetaLaw::SquaredCosine, [0.0; 2], 1000).unwrap();
    let whole = s.levels(Spacing::Linspace, 1000, End::Clean).unwrap();
    let some = s.levels(Spacing::Trailing, 250, End::Clean).unwrap();
    let edm = Levels::karras([0.002, 80.0], 7.0, 80).unwrap();
    let solver = |stochastic| DpmSolver { stochastic, ..DpmSolver::default() };
    let churn = Churn { amount: 20.0, range: [0.01, 50.0], noise: 1.0 };
    let programs = [
        ("DDPM", ddpm(&whole, &Ddpm::default())),
        ("DDIM", ddim(&some, &Ddim::default())),
        ("DPM-Solver++ 2M", dpm_solver_pp(&edm, &solver(false))),
        ("SDE-DPM-Solver++ 2M", dpm_solver_pp(&some, &solver(true))),
        ("Heun", heun(&edm, &Churn::NONE)),
        ("Heun, churn", heun(&edm, &churn)),
    ];
    let n = 20_000;
    for (what, program) in programs {
        let program = program.unwrap();
        let first = program.start();
        // At the first level next to nothing is left of the image but its mean.
        let mean = MODES.iter().map(|m| m[0] * m[1]).sum::<f64>();
        let x = normals(n, 0, 9).iter().map(|z| first.alpha * mean + first.norm() * z).collect();
        let denoiser = |x: &[f64], l: &Level| HostEstimate::of(x.iter().map(|&x| of_modes(x, l)).collect());
        let got = host::run(&program, x, denoiser, |step| normals(n, step as u32 + 1, 1), |_| ()).unwrap();
        for (upper, [share, mean, deviation]) in [false, true].into_iter().zip(MODES) {
            let mode: Vec<f64> = got.iter().copied().filter(|v| (*v > -0.25) == upper).collect();
            let count = mode.len() as f64;
            let (total, centre) = (n as f64, mode.iter().sum::<f64>() / count);
            let spread = (mode.iter().map(|v| (v - centre).powi(2)).sum::<f64>() / count).sqrt();
            let limit = 4.0 * (share * (1.0 - share) / total).sqrt() + 0.01;
            assert!((count / total - share).abs() < limit, "{what}: share {}", count / total);
            assert!((centre - mean).abs() < 4.0 * deviation / count.sqrt() + 0.01, "{what}: mean {centre}");
            assert!((spread / deviation - 1.0).abs() < 4.0 / (2.0 * count).sqrt() + 0.04, "{what}: {spread}");
        }
    }
}

#[test]
fn the_exact_variance_makes_few_steps_exact() {
    // The reverse step of a normal law is normal: with its true mean and variance no step is too large.
    let s = Schedule::new(BetaLaw::SquaredCosine, [0.0; 2], 1000).unwrap();
    let levels = s.levels(Spacing::Linspace, 6, End::First);
    assert!(levels.is_err(), "the last timestep is the first");
    let levels = s.levels(Spacing::LinspaceOpen, 6, End::First).unwrap();
    let program = ddpm(&levels, &Ddpm { variance: Variance::Learned, temperature: 1.0 }).unwrap();
    let calls: Vec<Call> = program.calls().to_vec();
    let denoiser = |x: &[f64], l: &Level| {
        let call = calls.iter().find(|c| c.level.time == l.time).unwrap();
        // Var(x0 | x), carried to the new x, on top of the posterior's variance.
        let spread = DEVIATION * l.sigma / marginal(l);
        let variance = (2.0 * call.spread[0]).exp() + (call.x.x0 * spread).powi(2);
        let [low, high] = call.spread;
        let fraction = (0.5 * variance.ln() - low) / (high - low);
        HostEstimate { variance: Some(vec![fraction; x.len()]), ..denoise(x, l) }
    };
    check_distribution("DDPM, exact variance", &program, denoiser, 0.007);
}

#[test]
fn samplers_that_are_the_same_make_the_same_program() {
    let levels = Schedule::new(BetaLaw::Linear, [1e-4, 0.02], 1000)
        .unwrap()
        .levels(Spacing::LinspaceOpen, 20, End::First)
        .unwrap();
    let same = |a: Program, b: Program, what: &str| {
        for (a, b) in a.calls().iter().zip(b.calls()) {
            let (a, b) = (a.x, b.x);
            let pairs = [(a.x, b.x), (a.x0 + a.unclipped, b.x0 + b.unclipped), (a.noise, b.noise)];
            assert!(pairs.iter().all(|(p, q)| (p - q).abs() < 1e-12), "{what}: {a:?} {b:?}");
        }
        assert_eq!(a.steps(), b.steps());
    };
    let first = DpmSolver { order: 1, ..DpmSolver::default() };
    let plain = || ddim(&levels, &Ddim::default()).unwrap();
    same(plain(), euler(&levels, &Churn::NONE).unwrap(), "DDIM is Euler");
    same(plain(), dpm_solver_pp(&levels, &first).unwrap(), "DDIM is the first order of DPM-Solver++");
    let stochastic = ddim(&levels, &Ddim { eta: 1.0, clipped_direction: true }).unwrap();
    same(stochastic, ddpm(&levels, &Ddpm::default()).unwrap(), "DDIM with eta 1 is DDPM");
    let sde = DpmSolver { stochastic: true, ..first };
    let exact = ddpm(&levels, &Ddpm::default()).unwrap();
    same(dpm_solver_pp(&levels, &sde).unwrap(), exact, "SDE-DPM-Solver++ 1 is DDPM");
}

#[test]
fn samplers_are_found_by_name() {
    let levels = Levels::karras([0.01, 10.0], 7.0, 40).unwrap();
    for sampler in SAMPLERS {
        let program = named(sampler.name).unwrap().program(&levels).unwrap();
        assert_eq!((program.steps(), program.start()), (40, levels.start()), "{}", sampler.name);
        assert_eq!(
            program.stochastic(),
            ["ddpm", "dpmpp-2m-sde"].contains(&sampler.name),
            "{}",
            sampler.name
        );
    }
    let churn = Churn { amount: 8.0, noise: 1.1, ..Churn::NONE };
    let churned = heun(&levels, &churn).unwrap();
    assert_eq!(churned.start(), levels.start(), "noise added before the first call belongs to the call");
    assert!(churned.calls()[0].level.sigma > levels.start().sigma);
    assert_eq!(named("heun").unwrap().program(&levels).unwrap().calls().len(), 79);
    assert!(named("lms").err().unwrap().to_string().contains("dpmpp-2m"));
}

#[test]
fn temperature_scales_the_noise() {
    let levels = Levels::karras([0.1, 10.0], 7.0, 5).unwrap();
    let at = |temperature| ddpm(&levels, &Ddpm { temperature, ..Ddpm::default() }).unwrap();
    let (one, half, none) = (at(1.0), at(0.5), at(0.0));
    for (a, b) in one.calls().iter().zip(half.calls()) {
        assert_eq!((a.x.noise * 0.5, a.x.x), (b.x.noise, b.x.x));
    }
    assert!(one.stochastic() && !none.stochastic());
    assert_eq!(one.calls().last().unwrap().x.noise, 0.0, "nothing is added to the end");
}

#[test]
fn values_that_are_not_finite_stop_with_their_step() {
    let levels = Levels::karras([0.1, 10.0], 7.0, 5).unwrap();
    let program = euler(&levels, &Churn::NONE).unwrap();
    let broken = |x: &[f64], l: &Level| {
        if l.sigma < 1.0 { HostEstimate::of(vec![f64::NAN; x.len()]) } else { denoise(x, l) }
    };
    let e = host::run(&program, vec![1.0], broken, |_| vec![], |_| ()).unwrap_err();
    let first = levels.steps().iter().position(|s| s.from.sigma < 1.0).unwrap();
    assert!(matches!(&e, Error::NonFinite { step, .. } if *step == first), "{e}");
    assert!(e.to_string().contains("the denoiser"), "{e}");
}

/// Churn holds at both ends of its range, and nowhere beyond.
#[test]
fn churn_holds_at_the_ends_of_its_range() {
    let levels = geometric(8.0, 0.5, 4);
    let raises = |range: [f64; 2]| -> Vec<bool> {
        let program = euler(&levels, &Churn { amount: 1.0, range, noise: 1.0 }).unwrap();
        program.calls().iter().map(|c| c.raise > 0.0).collect()
    };
    let ratios: Vec<f64> = levels.steps().iter().map(|s| s.from.ratio()).collect();
    assert_eq!(raises([ratios[2], ratios[1]]), [false, true, true, false]);
    assert_eq!(raises([ratios[2].next_up(), ratios[1].next_down()]), [false; 4]);
}

/// Fewer than 15 steps end in lower orders; 15 do not.
#[test]
fn few_steps_are_fewer_than_fifteen() {
    let calls = |steps: usize, lower_order_final: bool| {
        let options = DpmSolver { lower_order_final, ..DpmSolver::default() };
        dpm_solver_pp(&geometric(10.0, 0.1, steps), &options).unwrap().calls().to_vec()
    };
    assert_eq!(calls(15, true), calls(15, false));
    assert_ne!(calls(14, true), calls(14, false));
}

/// SDE-DPM-Solver++ 2 after Heun: an x0 that is a straight line in lambda is integrated exactly. With weight 2 e^(2 (l - l')), the
/// line's slope counts alpha (h - (1 - e^(-2h)) / 2).
#[test]
fn stochastic_heun_is_exact_for_straight_lines() {
    let options = DpmSolver { second: Second::Heun, stochastic: true, ..DpmSolver::default() };
    for levels in [geometric(9.0, 0.2, 20), geometric(9.0, 0.2, 20).preserving()] {
        let program = dpm_solver_pp(&levels, &options).unwrap();
        for (i, call) in program.calls().iter().enumerate().skip(1) {
            let step = levels.steps()[i];
            let h = step.to.lambda() - step.from.lambda();
            let before = step.from.lambda() - levels.steps()[i - 1].from.lambda();
            // x0 = 1 + (lambda - lambda of this step): 1 now, and 1 - before at the step before.
            let got = call.x.x0 + call.x.kept[0] * (1.0 - before);
            let decay = 1.0 - (-2.0 * h).exp();
            let exact = step.to.alpha * (decay + h - 0.5 * decay);
            assert!((got - exact).abs() < 1e-12, "step {i}: {got} for {exact}");
        }
    }
}

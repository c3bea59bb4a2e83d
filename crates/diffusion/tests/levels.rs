//! Schedules, spacings and levels: closed forms, counts, and what is refused.

use clearshot_diffusion::precondition::Prediction;
use clearshot_diffusion::sampler::{
    Churn, Ddim, Ddpm, DpmSolver, Variance, ddim, ddpm, dpm_solver_pp, euler, heun,
};
use clearshot_diffusion::schedule::{BetaLaw, End, Rounding, Schedule};
use clearshot_diffusion::{Clock, Error, Level, Levels, Spacing, Step};

const ENDS: [f64; 2] = [1e-4, 0.02];

fn schedule(law: BetaLaw) -> Schedule {
    Schedule::new(law, ENDS, 1000).unwrap()
}

fn close(got: f64, truth: f64, limit: f64) {
    assert!((got - truth).abs() <= limit * truth.abs().max(1e-300), "{got} for {truth}");
}

#[test]
fn every_spacing_gives_as_many_timesteps_as_asked_for() {
    let spacings = [
        Spacing::Leading { offset: 0 },
        Spacing::Linspace,
        Spacing::Trailing,
        Spacing::LeadingOpen { offset: 0 },
        Spacing::LinspaceOpen,
        Spacing::LinspaceReal,
        Spacing::Quadratic,
    ];
    for total in [1, 2, 3, 10, 97, 700, 1000] {
        for spacing in spacings {
            let open = matches!(spacing, Spacing::LeadingOpen { .. } | Spacing::LinspaceOpen);
            let most = if open { total - 1 } else { total };
            for steps in 1..=most {
                let times = spacing.timesteps(total, steps).unwrap();
                assert_eq!(times.len(), steps, "{spacing:?} {total} {steps}");
                assert!(times.windows(2).all(|w| w[0] > w[1]), "{spacing:?} {total} {steps}: {times:?}");
                assert!(times[0] <= (total - 1) as f64 && times[steps - 1] >= 0.0, "{spacing:?} {times:?}");
            }
            for steps in [0, most + 1] {
                let e = spacing.timesteps(total, steps).unwrap_err();
                assert!(e.to_string().starts_with("the number of steps is"), "{e}");
            }
        }
    }
}

#[test]
fn spacings_begin_and_end_where_they_say() {
    let of = |s: Spacing, n| s.timesteps(1000, n).unwrap();
    assert_eq!(of(Spacing::Leading { offset: 1 }, 4), [751.0, 501.0, 251.0, 1.0]);
    assert_eq!(of(Spacing::Linspace, 4), [999.0, 666.0, 333.0, 0.0]);
    assert_eq!(of(Spacing::Trailing, 4), [999.0, 749.0, 499.0, 249.0]);
    assert_eq!(of(Spacing::Quadratic, 4), [999.0, 444.0, 111.0, 0.0]);
    assert_eq!(of(Spacing::Quadratic, 1000), of(Spacing::Linspace, 1000));
    // An offset that leaves the schedule is refused, not wrapped.
    let e = Spacing::Leading { offset: 1 }.timesteps(1000, 1000).unwrap_err();
    assert!(e.to_string().contains("below 1000"), "{e}");
}

#[test]
fn betas_follow_their_laws() {
    let beta = |law, t: usize| schedule(law).betas()[t];
    let part = |t: usize| t as f64 / 999.0;
    for t in [0, 1, 500, 999] {
        let linear = ENDS[0] + part(t) * (ENDS[1] - ENDS[0]);
        close(beta(BetaLaw::Linear, t), linear, 1e-7);
        close(beta(BetaLaw::Sqrt, t), linear.sqrt(), 1e-7);
        let root = ENDS[0].sqrt() + part(t) * (ENDS[1].sqrt() - ENDS[0].sqrt());
        close(beta(BetaLaw::ScaledLinear, t), root * root, 1e-7);
        close(beta(BetaLaw::Exponential, t), ENDS[0] * (ENDS[1] / ENDS[0]).powf(part(t)), 1e-7);
    }
    let cosine = schedule(BetaLaw::SquaredCosine);
    close(cosine.betas()[999], 0.999, 1e-7);
    let at = |u: f64| ((u + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2);
    close(cosine.alphas_cumprod()[499], at(0.5) / at(0.0), 1e-5);
    close(schedule(BetaLaw::ExponentialDecay).alphas_cumprod()[249], (-3.0f64).exp(), 1e-5);
    for law in
        [BetaLaw::Linear, BetaLaw::Sqrt, BetaLaw::Sigmoid, BetaLaw::Exponential, BetaLaw::SquaredCosine]
    {
        let s = schedule(law);
        assert!(s.alphas_cumprod().windows(2).all(|w| w[0] > w[1]), "{law:?}");
        for t in [0, 10, 999] {
            let l = s.level(t).unwrap();
            close(l.alpha * l.alpha + l.sigma * l.sigma, 1.0, 1e-14);
        }
    }
    let own = Schedule::of_betas(&[0.1, 0.5, 0.25]).unwrap();
    for (got, truth) in own.alphas_cumprod().iter().zip([0.9, 0.45, 0.3375]) {
        close(*got, truth, 1e-7);
    }
}

#[test]
fn linear_schedules_follow_their_authors() {
    assert_eq!(BetaLaw::of_diffusers("linear").unwrap(), BetaLaw::Linear);
    assert_eq!(BetaLaw::of_latent_diffusion("linear").unwrap(), BetaLaw::ScaledLinear);
    assert_eq!(BetaLaw::of_latent_diffusion("sqrt_linear").unwrap(), BetaLaw::Linear);
    let e = BetaLaw::named("linear").unwrap_err().to_string();
    assert!(e.contains("ddpm_linear") && e.contains("scaled_linear"), "{e}");
}

#[test]
fn a_finer_image_has_its_signal_to_noise_ratio_lowered_exactly() {
    let s = schedule(BetaLaw::SquaredCosine);
    let finer = s.for_resolution(256.0, 64.0).unwrap();
    for t in [0, 3, 400, 999] {
        let (a, b) = (s.level(t).unwrap(), finer.level(t).unwrap());
        close(a.log_snr() - b.log_snr(), 2.0 * 4.0f64.ln(), 1e-9);
        close(b.norm(), 1.0, 1e-14);
        assert_eq!(a.time, b.time);
    }
    close(finer.betas()[500], 1.0 - finer.alphas_cumprod()[500] / finer.alphas_cumprod()[499], 1e-9);
    assert!(s.for_resolution(0.0, 64.0).is_err());
}

#[test]
fn karras_levels_have_exact_ends() {
    let levels = Levels::karras([0.002, 80.0], 7.0, 18).unwrap();
    assert_eq!((levels.start().sigma, levels.len()), (80.0, 18));
    assert_eq!(
        levels.steps()[17],
        Step { from: Level::new(1.0, 0.002, 0.25 * 0.002f64.ln()), to: Level::CLEAN }
    );
    let middle: f64 = (80f64.powf(1.0 / 7.0) * 8.0 / 17.0 + 0.002f64.powf(1.0 / 7.0) * 9.0 / 17.0).powi(7);
    close(levels.steps()[9].from.sigma, middle, 1e-12);
    for (range, rho, steps) in [
        ([0.0, 80.0], 7.0, 5),
        ([1.0, 0.5], 7.0, 5),
        ([0.1, 1.0], 0.0, 5),
        ([0.1, f64::NAN], 7.0, 5),
        ([0.1, 1.0], 7.0, 0),
    ] {
        assert!(Levels::karras(range, rho, steps).is_err(), "{range:?} {rho} {steps}");
    }
    let one = Levels::karras([0.002, 80.0], 7.0, 1).unwrap();
    assert_eq!((one.start().sigma, one.end().sigma), (80.0, 0.0));
}

#[test]
fn a_table_clock_gives_timesteps_back() {
    let s = schedule(BetaLaw::Linear);
    let clock = s.clock();
    for t in [0, 1, 77, 500, 998, 999] {
        let time = clock.time(s.level(t).unwrap().ratio());
        assert!((time - t as f64).abs() < 2e-3, "{t}: {time}");
    }
    assert_eq!((clock.time(1e-9), clock.time(1e9)), (0.0, 999.0));
    let levels = s.karras_levels(s.range(), 7.0, 12, Rounding::Nearest, End::Clean).unwrap();
    assert!(levels.steps().iter().all(|s| s.from.time.fract() == 0.0));
}

#[test]
fn levels_that_do_not_decrease_are_refused_by_name() {
    let level = |sigma: f64| Level::new(1.0, sigma, 0.0);
    let made =
        |sigmas: &[f64]| Levels::new(&sigmas.iter().map(|&s| level(s)).collect::<Vec<_>>(), Clock::LogSigma);
    assert!(made(&[3.0, 2.0, 0.0]).is_ok());
    let e = made(&[3.0, 2.0, 2.0, 0.0]).unwrap_err();
    assert!(matches!(e, Error::NotDecreasing { step: 1, .. }), "{e}");
    assert!(e.to_string().contains("levels must decrease: step 1"), "{e}");
    assert!(matches!(made(&[1.0, 2.0]).unwrap_err(), Error::NotDecreasing { step: 0, .. }));
    assert!(matches!(made(&[f64::NAN, 2.0]).unwrap_err(), Error::Level { index: 0, .. }));
    assert!(matches!(made(&[3.0, -1.0]).unwrap_err(), Error::Level { index: 1, .. }));
    assert!(made(&[3.0]).is_err() && made(&[]).is_err());
    // A step may not begin with more noise than the one before.
    let steps = [[3.0, 1.0], [3.5, 0.5]].map(|[a, b]| Step { from: level(a), to: level(b) });
    let e = Levels::of_steps(steps.to_vec(), Clock::LogSigma).unwrap_err();
    assert!(matches!(e, Error::NotDecreasing { between: true, .. }), "{e}");
    // Ending at the first timestep where the last step begins there.
    let s = schedule(BetaLaw::Linear);
    assert!(s.levels(Spacing::Linspace, 10, End::First).is_err());
    assert!(s.levels(Spacing::LinspaceOpen, 10, End::First).is_ok());
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let levels = Levels::karras([0.1, 10.0], 7.0, 5).unwrap();
    for eta in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        let e = ddim(&levels, &Ddim { eta, ..Ddim::default() }).unwrap_err();
        assert!(e.to_string().starts_with("eta is"), "{e}");
    }
    for order in [0, 4] {
        assert!(dpm_solver_pp(&levels, &DpmSolver { order, ..DpmSolver::default() }).is_err());
    }
    let stochastic = DpmSolver { order: 3, stochastic: true, ..DpmSolver::default() };
    assert!(dpm_solver_pp(&levels, &stochastic).unwrap_err().to_string().contains("SDE-DPM-Solver++"));
    let churns = [
        Churn { amount: -1.0, ..Churn::NONE },
        Churn { noise: f64::NAN, ..Churn::NONE },
        Churn { range: [2.0, 1.0], ..Churn::NONE },
    ];
    for churn in churns {
        assert!(euler(&levels, &churn).is_err() && heun(&levels, &churn).is_err(), "{churn:?}");
    }
    let hot = Ddpm { variance: Variance::FixedSmall, temperature: -1.0 };
    assert!(ddpm(&levels, &hot).unwrap_err().to_string().starts_with("the temperature is"));
    assert!(Schedule::new(BetaLaw::Linear, [0.0, 0.02], 10).is_err());
    assert!(Schedule::new(BetaLaw::Linear, ENDS, 0).is_err());
    assert!(Schedule::of_betas(&[0.1, 1.0]).unwrap_err().to_string().contains("timestep 1"));
    assert!(Schedule::of_betas(&[f64::NAN]).is_err());
}

#[test]
fn sampling_can_start_below_a_level() {
    let levels = Levels::karras([0.01, 10.0], 7.0, 9).unwrap();
    let later = levels.starting_below(1.0).unwrap();
    assert!(later.start().sigma <= 1.0 && levels.steps()[levels.len() - later.len() - 1].from.sigma > 1.0);
    assert_eq!(later.end(), Level::CLEAN);
    assert!(levels.starting_below(1e-3).unwrap_err().to_string().contains("the noise to start from"));
    assert!(levels.from_step(9).is_err());
}

#[test]
fn every_prediction_means_the_same_clean_image() {
    let (x0, noise) = (0.7, -1.3);
    let levels = [Level::new(0.6, 0.8, 0.0), Level::new(1.0, 3.0, 0.0), Level::new(0.3, 0.2, 0.0)];
    for l in levels {
        let x = l.alpha * x0 + l.sigma * noise;
        let n = l.norm();
        let edm = Prediction::Edm { sigma_data: 0.5 };
        let c = edm.coefficients(&l);
        let right = [
            (Prediction::Noise, noise),
            (Prediction::Sample, x0),
            (Prediction::Velocity, (l.alpha * noise - l.sigma * x0) / n),
            (edm, (x0 - c.skip * x) / c.output),
        ];
        for (prediction, output) in right {
            let c = prediction.coefficients(&l);
            close(c.skip * x + c.output * output, x0, 1e-13);
        }
        // EDM's own numbers, for x / alpha.
        let s = l.sigma / l.alpha;
        close(c.input * l.alpha, 1.0 / (s * s + 0.25).sqrt(), 1e-14);
        close(c.skip * l.alpha, 0.25 / (s * s + 0.25), 1e-14);
        close(c.output, s * 0.5 / (s * s + 0.25).sqrt(), 1e-14);
    }
    // Without noise a denoiser gives its input back.
    let clean = Prediction::Edm { sigma_data: 0.5 }.coefficients(&Level::new(1.0, 0.0, 0.0));
    assert_eq!((clean.skip, clean.output), (1.0, 0.0));
}

//! Cases of noise schedules: diffusers' tables of betas and of the products of alphas.

use crate::Result;
use crate::case::{Attrs, Case};
use crate::engine::Engine;
use crate::report::{Checks, Class};
use clearshot_diffusion::schedule::{BetaLaw, Schedule};
use clearshot_tensor::{Data, Tensor};

/// The schedule that a configuration of diffusers describes.
pub(crate) fn of_diffusers(config: &Attrs) -> Result<Schedule> {
    if let Some(betas) = config.get("trained_betas").and_then(|b| b.as_array()) {
        let betas: Vec<f64> = betas.iter().filter_map(|b| b.as_f64()).collect();
        return Ok(Schedule::of_betas(&betas)?);
    }
    let law = BetaLaw::of_diffusers(config.text("beta_schedule").ok_or("no `beta_schedule`")?)?;
    let ends = [config.number("beta_start")?, config.number("beta_end")?];
    Ok(Schedule::new(law, ends, config.count_or("num_train_timesteps", 1000)?)?)
}

/// Makes the case's schedule and compares.
///
/// # Errors
/// If there is no such schedule.
pub fn run(case: &Case, _: Engine) -> Result<Checks> {
    let schedule = of_diffusers(&case.attrs)?;
    let tensor = |values: Vec<f64>| Tensor::new([values.len()], Data::F64(values));
    let mut checks = Checks::default();
    let betas = tensor(schedule.betas().to_vec())?;
    checks.tensor(Class::Schedule, "betas", &betas, case.tensor("out.betas")?);
    let products = tensor(schedule.alphas_cumprod())?;
    checks.tensor(Class::Schedule, "alphas_cumprod", &products, case.tensor("out.alphas_cumprod")?);
    Ok(checks)
}

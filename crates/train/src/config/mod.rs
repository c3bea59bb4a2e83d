//! The configuration of a run: every key with its default.
//!
//! The structs are plain: unknown keys are refused, and [`RunConfig::check`] refuses invalid values before anything is
//! computed. The files in `configs` are groups of these keys.

mod cameras;
mod check;
mod data;
mod learned;
mod resolve;
mod running;

pub use data::{CameraConfig, DataConfig, DataKind, SignalKind};
pub use learned::{
    Along, BlindConfig, BlindFill, CompileMode, ConditionPart, DistanceKind, FormKind, GanConfig,
    ModelConfig, PredictionKind, ScoreKind, TaskConfig, TaskKind, TermConfig, WeightKind,
};
pub use resolve::epochs;
pub use running::{
    Backend, CalibrationConfig, CheckpointConfig, Complexity, Compression, Count, DebugConfig,
    DistributedConfig, GrowthConfig, OptimizerConfig, OptimizerKind, PerformanceConfig, Profiling, RateShape,
    RecordsConfig, ScheduleConfig, StageConfig, TrainerConfig, ValidationConfig,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The JSON Schema of [`RunConfig`]: every key with what its comment says, for references and editors.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(RunConfig).to_value()
}

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// Name of the model.
    pub name: String,
    /// Seed of the weights, the data and the noise.
    pub seed: u64,
    pub data: DataConfig,
    pub model: ModelConfig,
    pub task: TaskConfig,
    pub optimizer: OptimizerConfig,
    pub schedule: ScheduleConfig,
    pub trainer: TrainerConfig,
    pub distributed: DistributedConfig,
    pub performance: PerformanceConfig,
    pub validation: ValidationConfig,
    pub calibration: CalibrationConfig,
    pub checkpoint: CheckpointConfig,
    pub records: RecordsConfig,
    pub debug: DebugConfig,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;
    use serde_json::{Value as Json, json};

    fn read(value: Json) -> Result<RunConfig> {
        let config: RunConfig = serde_json::from_value(value).unwrap();
        config.check()?;
        Ok(config)
    }

    #[test]
    fn invalid_values_name_their_key() {
        for (value, key) in [
            (json!({}), "trainer.iterations"),
            (json!({"trainer": {"iterations": 5, "seconds": 3.0}}), "trainer.iterations"),
            (json!({"trainer": {"iterations": 5, "batch": "most"}}), "trainer.batch"),
            (json!({"trainer": {"iterations": 5, "batch": 6, "accumulate": 4}}), "trainer.batch"),
            (
                json!({"trainer": {"iterations": 5}, "performance": {"budget": "4 giga"}}),
                "performance.budget",
            ),
            (json!({"trainer": {"iterations": 5}, "data": {"kind": "pairs"}}), "data.inputs"),
            (json!({"trainer": {"epochs": "simple"}}), "trainer.epochs"),
            (
                json!({"trainer": {"iterations": 5, "growth": {"stages": [{"size": 32, "share": 1.0}]}}}),
                "trainer.growth",
            ),
            (json!({"trainer": {"iterations": 5}, "task": {"sigma_max": 0.001}}), "task.sigma_max"),
        ] {
            let text = read(value.clone()).unwrap_err().to_string();
            assert!(text.starts_with(key), "{value}: {text}");
        }
        assert!(read(json!({"trainer": {"iterations": 5}})).is_ok());
        let unknown = serde_json::from_value::<RunConfig>(json!({"trainer": {"iteration": 5}}));
        assert!(unknown.unwrap_err().to_string().contains("iteration"));
    }
}

//! The library's algorithms, and the record of which one was chosen.
//!
//! A record comes from a file that anyone may have written. It becomes an algorithm only by being found among those that there are
//! for the kind of convolution, and its scratch is never more than what is given to any.

use super::library::{Kind, LARGEST_SCRATCH};
use crate::tune::Record;
use cudarc::cudnn::sys::{
    cudnnConvolutionBwdDataAlgo_t as InputGrad, cudnnConvolutionBwdFilterAlgo_t as WeightGrad,
    cudnnConvolutionFwdAlgo_t as Forward,
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Algorithm {
    Forward(Forward),
    InputGrad(InputGrad),
    WeightGrad(WeightGrad),
}

const FORWARD: [Forward; 8] = [
    Forward::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
    Forward::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
    Forward::CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
    Forward::CUDNN_CONVOLUTION_FWD_ALGO_DIRECT,
    Forward::CUDNN_CONVOLUTION_FWD_ALGO_FFT,
    Forward::CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING,
    Forward::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD,
    Forward::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED,
];

const INPUT_GRAD: [InputGrad; 6] = [
    InputGrad::CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,
    InputGrad::CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
    InputGrad::CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT,
    InputGrad::CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING,
    InputGrad::CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD,
    InputGrad::CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED,
];

const WEIGHT_GRAD: [WeightGrad; 7] = [
    WeightGrad::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0,
    WeightGrad::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
    WeightGrad::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT,
    WeightGrad::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3,
    WeightGrad::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD,
    WeightGrad::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED,
    WeightGrad::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING,
];

/// What was chosen for a convolution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chosen {
    /// Whether the library adds bias and residual.
    pub fused: bool,
    pub algorithm: Algorithm,
    pub scratch: usize,
}

impl Chosen {
    /// Whether a convolution of this kind could have chosen it.
    pub fn suits(&self, kind: Kind) -> bool {
        let own = match kind {
            Kind::Forward | Kind::Fused { .. } => matches!(self.algorithm, Algorithm::Forward(_)),
            Kind::InputGrad => matches!(self.algorithm, Algorithm::InputGrad(_)),
            Kind::WeightGrad => matches!(self.algorithm, Algorithm::WeightGrad(_)),
        };
        own && self.scratch <= LARGEST_SCRATCH && (!self.fused || matches!(kind, Kind::Fused { .. }))
    }
}

/// `fused|plain forward|input|weight NUMBER SCRATCH`.
impl Record for Chosen {
    fn write(&self) -> String {
        let (kind, number) = match self.algorithm {
            Algorithm::Forward(a) => ("forward", a as u32),
            Algorithm::InputGrad(a) => ("input", a as u32),
            Algorithm::WeightGrad(a) => ("weight", a as u32),
        };
        format!("{} {kind} {number} {}", if self.fused { "fused" } else { "plain" }, self.scratch)
    }

    fn read(text: &str) -> Option<Chosen> {
        let words: Vec<&str> = text.split(' ').collect();
        let [fused, kind, number, scratch] = words[..] else { return None };
        let fused = match fused {
            "fused" => true,
            "plain" => false,
            _ => return None,
        };
        let number: usize = number.parse().ok()?;
        let algorithm = match kind {
            "forward" => Algorithm::Forward(*FORWARD.get(number)?),
            "input" => Algorithm::InputGrad(*INPUT_GRAD.get(number)?),
            "weight" => Algorithm::WeightGrad(*WEIGHT_GRAD.get(number)?),
            _ => return None,
        };
        Some(Chosen { fused, algorithm, scratch: scratch.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_is_at_its_own_number() {
        assert!(FORWARD.iter().enumerate().all(|(i, a)| *a as usize == i));
        assert!(INPUT_GRAD.iter().enumerate().all(|(i, a)| *a as usize == i));
        assert!(WEIGHT_GRAD.iter().enumerate().all(|(i, a)| *a as usize == i));
    }

    #[test]
    fn records_come_back_and_hostile_ones_do_not() {
        let all = FORWARD.map(Algorithm::Forward).into_iter();
        let all =
            all.chain(INPUT_GRAD.map(Algorithm::InputGrad)).chain(WEIGHT_GRAD.map(Algorithm::WeightGrad));
        for algorithm in all {
            for fused in [false, true] {
                let chosen = Chosen { fused, algorithm, scratch: 4096 };
                assert_eq!(Chosen::read(&chosen.write()), Some(chosen));
            }
        }
        for hostile in [
            "",
            "plain",
            "plain forward 8 0",
            "plain input 6 0",
            "plain weight 7 0",
            "plain forward -1 0",
            "plain forward 4294967297 0",
            "plain forward 1 -5",
            "plain forward 1 99999999999999999999999",
            "plain forward 1 0 0",
            "round forward 1 0",
            "plain sideways 1 0",
            "plain 1 0",
        ] {
            assert_eq!(Chosen::read(hostile), None, "{hostile}");
        }
        // Of another kind, or with more scratch than any is given.
        let chosen = |text| Chosen::read(text).expect("a record");
        assert!(chosen("plain forward 1 0").suits(Kind::Forward));
        assert!(!chosen("plain input 1 0").suits(Kind::Forward));
        assert!(!chosen("fused forward 1 0").suits(Kind::Forward));
        assert!(chosen("fused forward 1 0").suits(Kind::Fused { residual: true }));
        assert!(!chosen("plain forward 1 99999999999").suits(Kind::Forward));
    }
}

//! ONNX's operators, a file for each family.

mod conv;
mod elementwise;
mod functions;
mod matmul;
mod movement;
mod norm;
mod pool;
mod quantize;
mod reduce;
mod resize;
mod scatter;
mod shape;
mod slice;

use super::Importer;
use super::node::Call;
use crate::error::ImportError;

/// How an operator becomes nodes of the graph.
type Import = for<'m, 'a, 'n> fn(&mut Importer<'m, 'a>, Call<'n, 'a>) -> Result<(), ImportError>;

/// Every operator that is read.
const OPERATORS: &[(&str, Import)] = &[
    ("Conv", conv::conv),
    ("ConvTranspose", conv::conv_transpose),
    ("MatMul", matmul::matmul),
    ("Gemm", matmul::gemm),
    ("BatchNormalization", norm::batch_norm),
    ("GroupNormalization", norm::group_norm),
    ("InstanceNormalization", norm::instance_norm),
    ("LayerNormalization", norm::layer_norm),
    ("QuantizeLinear", quantize::quantize),
    ("DequantizeLinear", quantize::dequantize),
    ("Softmax", reduce::softmax),
    ("LogSoftmax", reduce::softmax),
    ("ReduceMean", reduce::reduce),
    ("ReduceSum", reduce::reduce),
    ("ReduceSumSquare", reduce::reduce),
    ("ReduceL2", reduce::reduce),
    ("ReduceL1", reduce::reduce),
    ("ReduceMax", reduce::reduce),
    ("ReduceMin", reduce::reduce),
    ("ReduceProd", reduce::product),
    ("AveragePool", pool::pool),
    ("MaxPool", pool::pool),
    ("GlobalAveragePool", pool::global),
    ("GlobalMaxPool", pool::global),
    ("Resize", resize::resize),
    ("Upsample", resize::resize),
    ("Add", elementwise::add),
    ("Sub", elementwise::sub),
    ("Mul", elementwise::mul),
    ("Div", elementwise::div),
    ("Pow", elementwise::pow),
    ("Max", elementwise::many),
    ("Min", elementwise::many),
    ("Sum", elementwise::many),
    ("Mean", elementwise::many),
    ("Mod", elementwise::modulo),
    ("Equal", elementwise::compare),
    ("Greater", elementwise::compare),
    ("GreaterOrEqual", elementwise::compare),
    ("Less", elementwise::compare),
    ("LessOrEqual", elementwise::compare),
    ("And", elementwise::compare),
    ("Or", elementwise::compare),
    ("Not", elementwise::not),
    ("Where", elementwise::choose),
    ("Abs", functions::function),
    ("Ceil", functions::function),
    ("Celu", functions::function),
    ("Clip", functions::clip),
    ("Cos", functions::function),
    ("Elu", functions::function),
    ("Erf", functions::erf),
    ("Exp", functions::function),
    ("Floor", functions::function),
    ("Gelu", functions::function),
    ("HardSigmoid", functions::function),
    ("HardSwish", functions::function),
    ("LeakyRelu", functions::function),
    ("Log", functions::function),
    ("Mish", functions::function),
    ("Neg", functions::function),
    ("PRelu", functions::prelu),
    ("Reciprocal", functions::function),
    ("Relu", functions::function),
    ("Round", functions::function),
    ("Selu", functions::function),
    ("Sigmoid", functions::function),
    ("Sign", functions::function),
    ("Sin", functions::function),
    ("Softplus", functions::function),
    ("Softsign", functions::function),
    ("Sqrt", functions::function),
    ("Tanh", functions::function),
    ("Cast", shape::cast),
    ("CastLike", shape::cast),
    ("Constant", shape::constant),
    ("ConstantOfShape", shape::constant_of_shape),
    ("Dropout", shape::identity),
    ("Identity", shape::identity),
    ("Range", shape::range),
    ("Shape", shape::shape),
    ("Size", shape::size),
    ("Concat", movement::concat),
    ("DepthToSpace", movement::depth_to_space),
    ("Expand", movement::expand),
    ("Flatten", movement::flatten),
    ("Pad", slice::pad),
    ("Reshape", movement::reshape),
    ("SpaceToDepth", movement::space_to_depth),
    ("Squeeze", movement::squeeze),
    ("Tile", movement::tile),
    ("Transpose", movement::transpose),
    ("Unsqueeze", movement::unsqueeze),
    ("Gather", slice::gather),
    ("ScatterND", scatter::scatter_nd),
    ("Slice", slice::slice),
    ("Split", slice::split),
];

/// The names of all operators that are read.
pub fn names() -> impl Iterator<Item = &'static str> {
    OPERATORS.iter().map(|(name, _)| *name)
}

pub(super) fn import<'a>(importer: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Result<(), ImportError> {
    match OPERATORS.iter().find(|(name, _)| *name == call.node.op) {
        Some((_, import)) => import(importer, call),
        None => {
            Err(ImportError::Unsupported { op: call.node.op.into(), node: call.label(), opset: call.opset })
        }
    }
}

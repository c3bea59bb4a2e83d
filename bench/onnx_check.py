"""Compares exported files with ONNX Runtime.

    CLEARSHOT_ONNX_CASES=/tmp/cases cargo test --release -p clearshot-onnx --test export
    python bench/onnx_check.py /tmp/cases

Each case is an ONNX file beside a safetensors file with inputs and what Clearshot's reference interpreter makes of them. Needs
numpy, safetensors, onnx and onnxruntime.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import load_file

# Of the largest value.
TOLERANCE = 1e-4


def main(folder: Path) -> int:
    failed = 0
    for path in sorted(folder.glob("*.onnx")):
        model = onnx.load(path)
        onnx.checker.check_model(model, full_check=True)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        tensors = load_file(path.with_suffix(".safetensors"))
        given = {name[3:]: value for name, value in tensors.items() if name.startswith("in.")}
        names = [name for name in tensors if name.startswith("out.")]
        results = session.run([name[4:] for name in names], given)
        errors = []
        for name, got in zip(names, results):
            want = tensors[name]
            assert got.shape == want.shape, (path.name, name, got.shape, want.shape)
            errors.append(np.abs(got - want).max() / np.abs(want).max())
        error = max(errors)
        failed += not error < TOLERANCE
        print(f"{path.stem:16} {len(model.graph.node):5} nodes  opset {model.opset_import[0].version}  {error:.1e}")
    print(f"ONNX Runtime {onnxruntime.__version__}: {failed} of {len(list(folder.glob('*.onnx')))} differ by more than {TOLERANCE}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

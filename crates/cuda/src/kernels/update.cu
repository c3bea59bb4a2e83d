// The updates of training. All parameters are updated by one launch: a table lists them, another says which
// stretch of which parameter each block takes. Where the factor is NaN some gradient was not finite, and
// everything keeps its value.

enum { GRAD_F32, GRAD_BF16, GRAD_F16 };

struct Tensor {
    float* param;
    const float* param_in;
    const void* grad;
    float* first;            // moments; momentum
    const float* first_in;
    float* second;
    const float* second_in;
    float* average;          // or null
    const float* average_in;
    u16* narrow;             // copy of the parameter in 16 bits, or null
    i64 count;
    int grad_type;
    int narrow_type;
};

struct Piece { int tensor; int from; };    // from: in units of PIECE elements

#define PIECE 16384

__device__ __forceinline__ float grad_at(const Tensor& t, i64 i) {
    if (t.grad_type == GRAD_BF16) return to_float(((const bf16*)t.grad)[i]);
    if (t.grad_type == GRAD_F16) return to_float(((const f16*)t.grad)[i]);
    return ((const float*)t.grad)[i];
}

__device__ __forceinline__ void write_narrow(const Tensor& t, i64 i, float x) {
    if (!t.narrow) return;
    if (t.narrow_type == GRAD_BF16) put(((bf16*)t.narrow)[i], x);
    else put(((f16*)t.narrow)[i], x);
}

__device__ __forceinline__ void grads_at(const Tensor& t, i64 i, float g[4]) {
    if (t.grad_type == GRAD_BF16) {
        Vec<bf16, 4> v = load<bf16, 4>((const bf16*)t.grad + i);
        for (int q = 0; q < 4; q++) g[q] = v.at(q);
    } else if (t.grad_type == GRAD_F16) {
        Vec<f16, 4> v = load<f16, 4>((const f16*)t.grad + i);
        for (int q = 0; q < 4; q++) g[q] = v.at(q);
    } else {
        Vec<float, 4> v = load<float, 4>((const float*)t.grad + i);
        for (int q = 0; q < 4; q++) g[q] = v.at(q);
    }
}

__device__ __forceinline__ void write_narrows(const Tensor& t, i64 i, const Vec<float, 4>& x) {
    if (!t.narrow) return;
    if (t.narrow_type == GRAD_BF16) {
        Vec<bf16, 4> v;
        for (int q = 0; q < 4; q++) v.set(q, x.v[q]);
        store<bf16, 4>((bf16*)t.narrow + i, v);
    } else {
        Vec<f16, 4> v;
        for (int q = 0; q < 4; q++) v.set(q, x.v[q]);
        store<f16, 4>((f16*)t.narrow + i, v);
    }
}

struct AdamRule { float beta1, beta2, eps, weight_decay; int decoupled; };

extern "C" __global__ void __launch_bounds__(256) adam(const Tensor* tensors, const Piece* pieces, AdamRule rule,
        const float* rate_, const float* step, const float* factor_, const float* decay_) {
    Piece piece = pieces[blockIdx.x];
    Tensor t = tensors[piece.tensor];
    float factor = *factor_, rate = *rate_;
    bool skip = factor != factor;
    float decay = decay_ ? *decay_ : 0.0f;
    __shared__ float corrections[2];
    if (threadIdx.x == 0) {
        double n = (double)*step + 1.0;
        corrections[0] = (float)((double)rate / (1.0 - pow((double)rule.beta1, n)));
        corrections[1] = (float)(1.0 / sqrt(1.0 - pow((double)rule.beta2, n)));
    }
    __syncthreads();
    float rate1 = corrections[0], root2 = corrections[1];
    i64 from = (i64)piece.from * PIECE, to = from + PIECE < t.count ? from + PIECE : t.count;
    auto one = [&](float p, float g, float& m, float& v) {
        if (skip) return p;
        g *= factor;
        if (rule.decoupled) p *= 1.0f - rate * rule.weight_decay;
        else g += rule.weight_decay * p;
        m = rule.beta1 * m + (1.0f - rule.beta1) * g;
        v = rule.beta2 * v + (1.0f - rule.beta2) * g * g;
        return p - rate1 * m / (sqrtf(v) * root2 + rule.eps);
    };
    auto mean = [&](float e, float p) { return skip ? e : e * decay + p * (1.0f - decay); };
    // Four at a time, loads before stores; places are multiples of 256 bytes.
    i64 whole = from + (to - from) / 4 * 4;
#pragma unroll 2
    for (i64 i = from + 4 * threadIdx.x; i < whole; i += 4 * 256) {
        Vec<float, 4> p = load<float, 4>(t.param_in + i), m = load<float, 4>(t.first_in + i);
        Vec<float, 4> v = load<float, 4>(t.second_in + i), e;
        if (t.average) e = load<float, 4>(t.average_in + i);
        float g[4];
        grads_at(t, i, g);
#pragma unroll
        for (int q = 0; q < 4; q++) p.v[q] = one(p.v[q], g[q], m.v[q], v.v[q]);
        store<float, 4>(t.param + i, p);
        store<float, 4>(t.first + i, m);
        store<float, 4>(t.second + i, v);
        write_narrows(t, i, p);
        if (t.average) {
#pragma unroll
            for (int q = 0; q < 4; q++) e.v[q] = mean(e.v[q], p.v[q]);
            store<float, 4>(t.average + i, e);
        }
    }
    for (i64 i = whole + threadIdx.x; i < to; i += 256) {
        float m = t.first_in[i], v = t.second_in[i], p = one(t.param_in[i], grad_at(t, i), m, v);
        t.param[i] = p;
        t.first[i] = m;
        t.second[i] = v;
        write_narrow(t, i, p);
        if (t.average) t.average[i] = mean(t.average_in[i], p);
    }
}

struct SgdRule { float momentum, weight_decay; int nesterov; };

extern "C" __global__ void __launch_bounds__(256) sgd(const Tensor* tensors, const Piece* pieces, SgdRule rule,
        const float* rate_, const float* factor_, const float* decay_) {
    Piece piece = pieces[blockIdx.x];
    Tensor t = tensors[piece.tensor];
    float factor = *factor_, rate = *rate_;
    bool skip = factor != factor;
    float decay = decay_ ? *decay_ : 0.0f;
    i64 from = (i64)piece.from * PIECE, to = from + PIECE < t.count ? from + PIECE : t.count;
    for (i64 i = from + threadIdx.x; i < to; i += 256) {
        float p = t.param_in[i], buffer = t.first_in[i];
        if (!skip) {
            float g = grad_at(t, i) * factor + rule.weight_decay * p;
            buffer = rule.momentum * buffer + g;
            p -= rate * (rule.nesterov ? g + rule.momentum * buffer : buffer);
        }
        t.param[i] = p;
        t.first[i] = buffer;
        write_narrow(t, i, p);
        if (t.average) {
            float e = t.average_in[i];
            t.average[i] = skip ? e : e * decay + p * (1.0f - decay);
        }
    }
}

// Averages of parameters that no optimiser of the same launch updates.
extern "C" __global__ void __launch_bounds__(256) ema(const Tensor* tensors, const Piece* pieces,
        const float* factor_, const float* decay_) {
    Piece piece = pieces[blockIdx.x];
    Tensor t = tensors[piece.tensor];
    float factor = *factor_, decay = *decay_;
    i64 from = (i64)piece.from * PIECE, to = from + PIECE < t.count ? from + PIECE : t.count;
    for (i64 i = from + threadIdx.x; i < to; i += 256) {
        float e = t.average_in[i];
        t.average[i] = factor != factor ? e : e * decay + t.param_in[i] * (1.0f - decay);
    }
}

// The sum of squares of each tensor's `grad`: stretches first, then one block a tensor, whose result goes
// to `param`. `starts` has the first piece of each tensor, and the number of pieces behind the last.
extern "C" __global__ void __launch_bounds__(256) squares(const Tensor* tensors, const Piece* pieces, float* partial) {
    __shared__ float scratch[33];
    Piece piece = pieces[blockIdx.x];
    Tensor t = tensors[piece.tensor];
    i64 from = (i64)piece.from * PIECE, to = from + PIECE < t.count ? from + PIECE : t.count;
    float sum = 0;
    i64 whole = from + (to - from) / 4 * 4;
#pragma unroll 4
    for (i64 i = from + 4 * threadIdx.x; i < whole; i += 4 * 256) {
        float g[4];
        grads_at(t, i, g);
        sum += g[0] * g[0] + g[1] * g[1] + g[2] * g[2] + g[3] * g[3];
    }
    for (i64 i = whole + threadIdx.x; i < to; i += 256) {
        float g = grad_at(t, i);
        sum += g * g;
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void squares_finish(const Tensor* tensors, const int* starts, const float* partial) {
    __shared__ double scratch[33];
    double sum = 0;
    for (int i = starts[blockIdx.x] + threadIdx.x; i < starts[blockIdx.x + 1]; i += blockDim.x) sum += partial[i];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) *tensors[blockIdx.x].param = (float)sum;
}

// 16-bit copies of parameters.
extern "C" __global__ void __launch_bounds__(256) narrow(const Tensor* tensors, const Piece* pieces) {
    Piece piece = pieces[blockIdx.x];
    Tensor t = tensors[piece.tensor];
    i64 from = (i64)piece.from * PIECE, to = from + PIECE < t.count ? from + PIECE : t.count;
    for (i64 i = from + threadIdx.x; i < to; i += 256) write_narrow(t, i, t.param_in[i]);
}

extern "C" __global__ void clip(const float* scale, const u64* squares, int count, double max_norm, int limited,
        float* norm_out, float* factor_out) {
    __shared__ double scratch[33];
    double sum = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) sum += *(const float*)squares[i];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) {
        double norm = sqrt(sum) / (double)*scale;
        double limit = limited ? fmin(max_norm / (norm + 1e-6), 1.0) : 1.0;
        *norm_out = (float)norm;
        *factor_out = isfinite(norm) ? (float)(limit / (double)*scale) : __int_as_float(0x7fc00000);
    }
}

extern "C" __global__ void loss_scale(const float* scale, const float* good, const float* norm, float growth,
        float backoff, float interval, float* scale_out, float* good_out) {
    float s = *scale, g = *good;
    if (!isfinite(*norm)) { *scale_out = s * backoff; *good_out = 0.0f; }
    else if (g + 1.0f >= interval) { *scale_out = s * growth; *good_out = 0.0f; }
    else { *scale_out = s; *good_out = g + 1.0f; }
}

extern "C" __global__ void count_step(const float* step, const float* factor, float* out) {
    *out = *factor != *factor ? *step : *step + 1.0f;
}

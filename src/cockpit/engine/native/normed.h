/* Included once for each type `real`. */

/* Of n steps of `lanes` numbers that lie side by side, a step `stride` behind the one before: sums of their differences
 * from `base` and of the squares of these. Few enough are added as they are. */
static inline void NAME(spread)(const real *restrict x, int64_t n, int64_t stride, int lanes, const real *restrict base,
                                double sum[LANES][2]) {
    for (int64_t from = 0; from < n; from += BLOCK) {
        const int64_t to = n - from < BLOCK ? n : from + BLOCK;
        real once[LANES] = {0}, squared[LANES] = {0};
        for (int64_t i = from; i < to; i++)
            for (int l = 0; l < lanes; l++) {
                const real y = x[i * stride + l] - base[l];
                once[l] += y, squared[l] += y * y;
            }
        for (int l = 0; l < lanes; l++) sum[l][0] += once[l], sum[l][1] += squared[l];
    }
}

/* The same of d, and of d times the normalised x. */
static inline void NAME(shares)(const real *restrict x, const real *restrict d, int64_t n, int64_t stride, int lanes,
                                const real *restrict mean, const real *restrict scale, double sum[LANES][2]) {
    for (int64_t from = 0; from < n; from += BLOCK) {
        const int64_t to = n - from < BLOCK ? n : from + BLOCK;
        real once[LANES] = {0}, weighted[LANES] = {0};
        for (int64_t i = from; i < to; i++)
            for (int l = 0; l < lanes; l++) {
                const int64_t at = i * stride + l;
                once[l] += d[at], weighted[l] += d[at] * ((x[at] - mean[l]) * scale[l]);
            }
        for (int l = 0; l < lanes; l++) sum[l][0] += once[l], sum[l][1] += weighted[l];
    }
}

/* Add all lanes to the first: they are of one channel. */
static inline void NAME(together)(double sum[LANES][2]) {
    for (int l = 1; l < LANES; l++) sum[0][0] += sum[l][0], sum[0][1] += sum[l][1];
}

/* Of `lanes` channels from c on that lie side by side (`last`), or of channel c alone, whose places do. */
static inline void NAME(group)(const real *x, const real *d, int64_t n, int64_t channels, int64_t places, int64_t c,
                               int lanes, int last, double eps, real *by_w, real *by_b) {
    const int64_t step = channels * places, begin = last ? c : c * places, stride = last ? channels : LANES;
    const int64_t whole = last ? places : places / LANES, rest = last ? 0 : places - whole * LANES;
    const double count = (double)n * places;
    real mean[LANES], scale[LANES], base[LANES];
    double all[LANES][2] = {{0}};
    for (int l = 0; l < lanes; l++) base[l] = x[begin + (last ? l : 0)];
    for (int64_t k = 0, at = begin; k < n; k++, at += step) {
        NAME(spread)(x + at, whole, stride, lanes, base, all);
        NAME(spread)(x + at + whole * LANES, rest, 1, 1, base, all);
    }
    if (!last) NAME(together)(all);
    for (int l = 0; l < lanes; l++) {
        const double *sum = all[last ? l : 0], from_base = sum[0] / count;
        const double variance = sum[1] / count - from_base * from_base;
        mean[l] = (real)(base[l] + from_base);
        scale[l] = (real)(1 / sqrt((variance > 0 ? variance : 0) + eps));
    }
    for (int64_t k = 0, at = begin; k < n; k++, at += step) {
        double sum[LANES][2] = {{0}};
        NAME(shares)(x + at, d + at, whole, stride, lanes, mean, scale, sum);
        NAME(shares)(x + at + whole * LANES, d + at + whole * LANES, rest, 1, 1, mean, scale, sum);
        if (!last) NAME(together)(sum);
        for (int l = 0; l < (last ? lanes : 1); l++) {
            by_b[k * channels + c + l] = (real)sum[l][0];
            by_w[k * channels + c + l] = (real)sum[l][1];
        }
    }
}

/* Of images [n, channels, places], or [n, places, channels] (`last`), with output gradients d: what each image adds to
 * the gradients of weight and bias, [n, channels]. */
int NAME(scale_and_shift)(const real *x, const real *d, int64_t n, int64_t channels, int64_t places, int64_t last,
                          double eps, real *by_w, real *by_b) {
    int64_t c = 0;
    for (; !last && c < channels; c++) NAME(group)(x, d, n, channels, places, c, LANES, 0, eps, by_w, by_b);
    for (; c + LANES <= channels; c += LANES) NAME(group)(x, d, n, channels, places, c, LANES, 1, eps, by_w, by_b);
    if (c < channels) NAME(group)(x, d, n, channels, places, c, (int)(channels - c), 1, eps, by_w, by_b);
    return 0;
}

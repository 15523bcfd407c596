/* Included once for each type `real`. */

/* Of a channel: what it is normalised with, and what is multiplied with. */
typedef struct {
    const real *mean, *scale, *w, *a, *b;
} NAME(Given);

/* Of LANES channels, or of as many equal ones: mean and scale, about the means of v and d, and what multiplies v, z, 1 in the
 * derivative by d, and v, d, z, 1 in that by x. */
typedef struct {
    real mean[LANES], scale[LANES], v[LANES], d[LANES], p[3][LANES], q[4][LANES];
} NAME(Factors);

/* The factors of channel c, for lane l, from sums over `count` numbers of v, d, v z, d z and v d, with v and d taken
 * from about their means on: where these are large, digits of products would cancel. */
static void NAME(factors)(const NAME(Given) *given, int64_t c, const double *sum, double count, int l,
                          NAME(Factors) *to, real *by_w) {
    const double s = given->scale[c], g = (given->w ? given->w[c] : 1) * s;
    const double more_v = sum[0] / count, more_d = sum[1] / count, vz = sum[2] / count, dz = sum[3] / count;
    const double rest = sum[4] - count * (more_v * more_d + vz * dz), v = to->v[l] + more_v, d = to->d[l] + more_d;
    const double of_v = -g * dz, of_d = given->a[c] - g * vz; /* what arrives at z is of_v v + of_d d */
    by_w[c] = (real)(s * rest);
    to->p[0][l] = (real)g, to->p[1][l] = (real)of_d, to->p[2][l] = (real)(given->b[c] - g * v);
    to->q[0][l] = (real)(s * of_v), to->q[1][l] = (real)(s * of_d);
    to->q[2][l] = (real)(-s * (of_v * vz + of_d * dz + g * rest / count));
    to->q[3][l] = (real)(-s * (of_v * v + of_d * d));
}

/* Sums of n steps, of `lanes` numbers each that lie side by side, a step `stride` behind the one before. Few enough are
 * added as they are. */
static inline void NAME(sums)(const real *restrict x, const real *restrict d, const real *restrict v, int64_t n,
                              int64_t stride, int lanes, const NAME(Factors) *f, double sum[LANES][SUMS]) {
    for (int64_t from = 0; from < n; from += BLOCK) {
        const int64_t to = n - from < BLOCK ? n : from + BLOCK;
        real of_v[LANES] = {0}, of_d[LANES] = {0}, of_vz[LANES] = {0}, of_dz[LANES] = {0}, of_vd[LANES] = {0};
        for (int64_t i = from; i < to; i++)
            for (int l = 0; l < lanes; l++) {
                const int64_t at = i * stride + l;
                const real z = (x[at] - f->mean[l]) * f->scale[l], p = v[at] - f->v[l], q = d[at] - f->d[l];
                of_v[l] += p, of_d[l] += q;
                of_vz[l] += p * z, of_dz[l] += q * z, of_vd[l] += p * q;
            }
        for (int l = 0; l < lanes; l++) {
            sum[l][0] += of_v[l], sum[l][1] += of_d[l];
            sum[l][2] += of_vz[l], sum[l][3] += of_dz[l], sum[l][4] += of_vd[l];
        }
    }
}

static inline void NAME(combined)(const real *restrict x, const real *restrict d, const real *restrict v, int64_t n,
                                  int64_t stride, int lanes, const NAME(Factors) *f, real *restrict by_d,
                                  real *restrict by_x) {
    for (int64_t i = 0; i < n; i++)
        for (int l = 0; l < lanes; l++) {
            const int64_t at = i * stride + l;
            const real z = (x[at] - f->mean[l]) * f->scale[l];
            by_d[at] = f->p[0][l] * v[at] + f->p[1][l] * z + f->p[2][l];
            by_x[at] = f->q[0][l] * v[at] + f->q[1][l] * d[at] + f->q[2][l] * z + f->q[3][l];
        }
}

/* The mean of some numbers of n, a step `stride` apart. */
static real NAME(about)(const real *x, int64_t n, int64_t stride) {
    enum { SOME = 64 };
    real sum = 0;
    if (n > SOME) n = SOME;
    for (int64_t i = 0; i < n; i++) sum += x[i * stride];
    return sum / n;
}

/* Channel c for lane l, of which n numbers v and d lie a step `stride` apart. */
static void NAME(normalised)(const NAME(Given) *given, int64_t c, int l, const real *v, const real *d, int64_t n,
                             int64_t stride, NAME(Factors) *to) {
    to->mean[l] = given->mean[c], to->scale[l] = given->scale[c];
    to->v[l] = NAME(about)(v, n, stride), to->d[l] = NAME(about)(d, n, stride);
}

/* One channel of images [n, channels, places], whose numbers lie side by side: LANES of them at a time. */
static void NAME(plane)(const real *x, const real *d, const real *v, int64_t n, int64_t channels, int64_t places,
                        int64_t c, const NAME(Given) *given, real *by_d, real *by_x, real *by_w) {
    NAME(Factors) f;
    double sum[LANES][SUMS] = {{0}};
    const int64_t whole = places / LANES, rest = whole * LANES;
    NAME(normalised)(given, c, 0, v + c * places, d + c * places, places, 1, &f);
    for (int l = 1; l < LANES; l++) f.mean[l] = f.mean[0], f.scale[l] = f.scale[0], f.v[l] = f.v[0], f.d[l] = f.d[0];
    for (int64_t k = 0; k < n; k++) {
        const int64_t at = (k * channels + c) * places, end = at + rest;
        NAME(sums)(x + at, d + at, v + at, whole, LANES, LANES, &f, sum);
        NAME(sums)(x + end, d + end, v + end, places - rest, 1, 1, &f, sum);
    }
    for (int l = 1; l < LANES; l++)
        for (int j = 0; j < SUMS; j++) sum[0][j] += sum[l][j];
    for (int l = 0; l < LANES; l++) NAME(factors)(given, c, sum[0], (double)n * places, l, &f, by_w);
    for (int64_t k = 0; k < n; k++) {
        const int64_t at = (k * channels + c) * places, end = at + rest;
        NAME(combined)(x + at, d + at, v + at, whole, LANES, LANES, &f, by_d + at, by_x + at);
        NAME(combined)(x + end, d + end, v + end, places - rest, 1, 1, &f, by_d + end, by_x + end);
    }
}

/* `lanes` channels from c on of numbers [n, channels]. */
static inline void NAME(columns)(const real *x, const real *d, const real *v, int64_t n, int64_t channels, int64_t c,
                                 int lanes, const NAME(Given) *given, real *by_d, real *by_x, real *by_w) {
    NAME(Factors) f;
    double sum[LANES][SUMS] = {{0}};
    for (int l = 0; l < lanes; l++) NAME(normalised)(given, c + l, l, v + c + l, d + c + l, n, channels, &f);
    NAME(sums)(x + c, d + c, v + c, n, channels, lanes, &f, sum);
    for (int l = 0; l < lanes; l++) NAME(factors)(given, c + l, sum[l], (double)n, l, &f, by_w);
    NAME(combined)(x + c, d + c, v + c, n, channels, lanes, &f, by_d + c, by_x + c);
}

/* Images [n, channels, places], or, with one place, numbers [n, channels]: what images are whose channels come last. */
int NAME(batch_norm_twice)(const real *x, const real *d, const real *v, int64_t n, int64_t channels, int64_t places,
                           const real *mean, const real *scale, const real *w, const real *a, const real *b,
                           real *by_d, real *by_x, real *by_w) {
    const NAME(Given) given = {mean, scale, w, a, b};
    int64_t c = 0;
    for (; places == 1 && c + LANES <= channels; c += LANES)
        NAME(columns)(x, d, v, n, channels, c, LANES, &given, by_d, by_x, by_w);
    if (places == 1 && c < channels)
        NAME(columns)(x, d, v, n, channels, c, (int)(channels - c), &given, by_d, by_x, by_w);
    for (; places != 1 && c < channels; c++)
        NAME(plane)(x, d, v, n, channels, places, c, &given, by_d, by_x, by_w);
    return 0;
}

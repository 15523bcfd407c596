/* Included once for each type `real`. */

/* Widen n numbers to a block, with zeros behind them. */
static void NAME(widen)(const real *restrict x, int n, double *restrict to) {
    for (int j = 0; j < n; j++) to[j] = x[j];
    for (int j = n; j < BLOCK; j++) to[j] = 0;
}

/* Products of `rows` vectors a with `others` vectors b, all of n numbers, added to out [rows, others], which is zero;
 * `same` says that b is a. The space has (rows + others) * BLOCK numbers. */
void NAME(inner)(const real *const *a, int64_t rows, const real *const *b, int64_t others, int64_t n, int64_t same,
                 double *space, double *out) {
    double *second = same ? space : space + rows * BLOCK;
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int size = (int)(n - i < BLOCK ? n - i : BLOCK);
        for (int64_t r = 0; r < rows; r++) NAME(widen)(a[r] + i, size, space + r * BLOCK);
        for (int64_t k = 0; k < others && !same; k++) NAME(widen)(b[k] + i, size, second + k * BLOCK);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = same ? r : 0; k < others; k++)
                out[r * others + k] += dot(space + r * BLOCK, second + k * BLOCK);
    }
    for (int64_t r = 0; r < rows && same; r++)
        for (int64_t k = 0; k < r; k++) out[r * others + k] = out[k * others + r];
}

/* One combination of `rows` vectors a of n numbers. */
static void NAME(combine_one)(const double *w, const real *const *a, int64_t rows, int64_t n, real *out) {
    double sum[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int size = (int)(n - i < BLOCK ? n - i : BLOCK);
        int64_t r = 0;
        for (int j = 0; j < size; j++) sum[j] = 0;
        for (; r + 3 <= rows; r += 3) { /* so that the sum is seldom loaded and stored */
            const real *restrict x = a[r] + i, *restrict y = a[r + 1] + i, *restrict z = a[r + 2] + i;
            const double u = w[r], v = w[r + 1], t = w[r + 2];
            for (int j = 0; j < size; j++) sum[j] += u * x[j] + v * y[j] + t * z[j];
        }
        for (; r < rows; r++) {
            const real *restrict x = a[r] + i;
            for (int j = 0; j < size; j++) sum[j] += w[r] * x[j];
        }
        for (int j = 0; j < size; j++) out[i + j] = (real)sum[j];
    }
}

typedef real NAME(some) __attribute__((vector_size(LANES * sizeof(real)), aligned(sizeof(real))));

/* Three combinations at once, which stay in registers until all vectors have been looked at: each number is read and
 * widened once for all of them. */
static void NAME(combine_three)(const double *w, const real *const *a, int64_t rows, int64_t n, real *out) {
    const double *u = w, *v = w + rows, *t = w + 2 * rows;
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        wide p = {0}, q = {0}, s = {0}, p2 = {0}, q2 = {0}, s2 = {0};
        for (int64_t r = 0; r < rows; r++) {
            const NAME(some) *from = (const NAME(some) *)(a[r] + i);
            const wide x = __builtin_convertvector(from[0], wide), y = __builtin_convertvector(from[1], wide);
            p += u[r] * x, q += v[r] * x, s += t[r] * x;
            p2 += u[r] * y, q2 += v[r] * y, s2 += t[r] * y;
        }
        NAME(some) *first = (NAME(some) *)(out + i), *second = (NAME(some) *)(out + n + i);
        NAME(some) *third = (NAME(some) *)(out + 2 * n + i);
        first[0] = __builtin_convertvector(p, NAME(some)), first[1] = __builtin_convertvector(p2, NAME(some));
        second[0] = __builtin_convertvector(q, NAME(some)), second[1] = __builtin_convertvector(q2, NAME(some));
        third[0] = __builtin_convertvector(s, NAME(some)), third[1] = __builtin_convertvector(s2, NAME(some));
    }
    for (; i < n; i++)
        for (int k = 0; k < 3; k++) {
            double sum = 0;
            for (int64_t r = 0; r < rows; r++) sum += w[k * rows + r] * a[r][i];
            out[k * n + i] = (real)sum;
        }
}

/* Combinations of `rows` vectors a of n numbers by weights [wanted, rows]. */
void NAME(combine)(const double *weights, const real *const *a, int64_t rows, int64_t wanted, int64_t n, real *out) {
    int64_t k = 0;
    for (; k + 3 <= wanted; k += 3) NAME(combine_three)(weights + k * rows, a, rows, n, out + k * n);
    for (; k < wanted; k++) NAME(combine_one)(weights + k * rows, a, rows, n, out + k * n);
}

/* Squared lengths of `count` vectors a, or of a - b where there are b; `sizes` are their numbers, out [count]. */
void NAME(lengths)(const real *const *a, const real *const *b, const int64_t *sizes, int64_t count, double *out) {
    enum { WIDTH = 4 * LANES };
    for (int64_t k = 0; k < count; k++) {
        const real *restrict x = a[k], *restrict y = b ? b[k] : 0;
        const int64_t whole = sizes[k] / WIDTH * WIDTH;
        double part[WIDTH] = {0}, sum = 0;
        for (int64_t i = 0; i < whole && !y; i += WIDTH)
            for (int l = 0; l < WIDTH; l++) part[l] += (double)x[i + l] * x[i + l];
        for (int64_t i = 0; i < whole && y; i += WIDTH)
            for (int l = 0; l < WIDTH; l++) {
                const double d = (double)x[i + l] - y[i + l];
                part[l] += d * d;
            }
        for (int64_t i = whole; i < sizes[k]; i++) {
            const double d = (double)x[i] - (y ? y[i] : 0);
            sum += d * d;
        }
        for (int l = 0; l < WIDTH; l++) sum += part[l];
        out[k] = sum;
    }
}

/* Of n terms s / (h + epsilon), added to out [3]: their sum, that of the absolute values where h < weak, and how many h
 * are negative. Few enough are added as they are. */
static inline void NAME(terms)(const real *restrict s, const real *restrict h, int n, real epsilon, real weak,
                               double *out) {
    enum { WIDTH = 2 * LANES };
    real whole[WIDTH] = {0}, doubtful[WIDTH] = {0}, negative[WIDTH] = {0};
    int i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        for (int l = 0; l < WIDTH; l++) {
            const real x = h[i + l], term = s[i + l] / (x + epsilon), size = term < 0 ? -term : term;
            whole[l] += term;
            doubtful[l] += x < weak ? size : 0;
            negative[l] += x < 0 ? 1 : 0;
        }
    for (; i < n; i++) {
        const real x = h[i], term = s[i] / (x + epsilon), size = term < 0 ? -term : term;
        whole[0] += term;
        doubtful[0] += x < weak ? size : 0;
        negative[0] += x < 0 ? 1 : 0;
    }
    for (int l = 0; l < WIDTH; l++) {
        out[0] += whole[l];
        out[1] += doubtful[l];
        out[2] += negative[l];
    }
}

/* Numbers x [n], negative where a bit is set: by factors of 1 and -1, so that there is no branch. */
void NAME(negated)(const real *restrict x, const uint64_t *restrict bits, int64_t n, real *restrict out) {
    enum { HALF = 32 };
    for (int64_t i = 0; i < n; i += HALF) {
        const uint32_t word = (uint32_t)(bits[i / 64] >> i % 64);
        const int size = (int)(n - i < HALF ? n - i : HALF);
        for (int j = 0; j < size; j++) out[i + j] = x[i + j] * (real)(1 - 2 * (int32_t)(word >> j & 1));
    }
}

/* Sums over the rows of x [n, m] of the squares. */
void NAME(square_sums)(const real *restrict x, int64_t n, int64_t m, real *restrict out) {
    enum { WIDTH = 1024 };
    double sum[WIDTH];
    for (int64_t start = 0; start < m; start += WIDTH) {
        const int size = (int)(m - start < WIDTH ? m - start : WIDTH);
        for (int j = 0; j < size; j++) sum[j] = 0;
        for (int64_t k = 0; k < n; k++) {
            const real *restrict row = x + k * m + start;
            for (int j = 0; j < size; j++) {
                const double v = row[j];
                sum[j] += v * v;
            }
        }
        for (int j = 0; j < size; j++) out[start + j] = (real)sum[j];
    }
}

void NAME(takeuchi)(const real *s, const real *h, int64_t n, double epsilon, double weak, double *out) {
    out[0] = out[1] = out[2] = 0;
    for (int64_t i = 0; i < n; i += BLOCK)
        NAME(terms)(s + i, h + i, (int)(n - i < BLOCK ? n - i : BLOCK), (real)epsilon, (real)weak, out);
}

/* Squared norms of individual gradients, their products with directions, and counts of all elements, in one call: of
 * gradients that are written out, or of the factors of one use. Included once for each type `real`.
 *
 * Each call writes all of its results: sums [1 + k, n], the squares first, and counts in the order bins, below, above,
 * NaN, infinite.
 */

/* The sum of LANES numbers, in pairs: one after the other, each would wait for the one before. */
static inline double NAME(joined)(const real *restrict part) {
    double half[LANES / 2];
    for (int l = 0; l < LANES / 2; l++) half[l] = (double)part[l] + (double)part[l + LANES / 2];
    for (int width = LANES / 4; width > 0; width /= 2)
        for (int l = 0; l < width; l++) half[l] += half[l + width];
    return half[0];
}

/* Products of four vectors a with two vectors v, of n numbers; vectors may be the same. Sums of LANES parts are short,
 * then widened. */
static void NAME(tile)(const real *const a[4], const real *const v[2], int64_t n, double sum[4][2]) {
    enum { SHORT = 64 * LANES };
    for (int e = 0; e < 4; e++) sum[e][0] = sum[e][1] = 0;
    for (int64_t start = 0; start < n; start += SHORT) {
        const int64_t stop = n - start < SHORT ? n : start + SHORT, whole = start + (stop - start) / LANES * LANES;
        real part[4][2][LANES] = {{{0}}};
        for (int64_t i = start; i < whole; i += LANES)
            for (int e = 0; e < 4; e++)
                for (int r = 0; r < 2; r++)
                    for (int l = 0; l < LANES; l++)
                        part[e][r][l] = MULTIPLY_ADD(a[e][i + l], v[r][i + l], part[e][r][l]);
        for (int e = 0; e < 4; e++)
            for (int r = 0; r < 2; r++) {
                for (int64_t i = whole; i < stop; i++) sum[e][r] += (double)a[e][i] * v[r][i];
                sum[e][r] += NAME(joined)(part[e][r]);
            }
    }
}

static double NAME(square)(const real *restrict x, int64_t n) {
    const int64_t whole = n / LANES * LANES;
    double part[LANES] = {0}, sum = 0;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++) part[l] += (double)x[i + l] * x[i + l];
    for (int64_t i = whole; i < n; i++) sum += (double)x[i] * x[i];
    for (int l = 0; l < LANES; l++) sum += part[l];
    return sum;
}

/* Write sums [n] of the products of x [n, m] with `rows` vectors v [rows, m], times a weight [n, rows] where there is
 * one. */
static void NAME(project)(const real *x, int64_t n, int64_t m, const real *v, int64_t rows, const real *weight,
                          double *sums) {
    for (int64_t i = 0; i < n; i++) sums[i] = 0;
    for (int64_t i = 0; i < n; i += 4)
        for (int64_t o = 0; o < rows; o += 2) {
            const real *a[4], *w[2];
            double found[4][2];
            for (int e = 0; e < 4; e++) a[e] = x + (i + e < n ? i + e : n - 1) * m;
            for (int r = 0; r < 2; r++) w[r] = v + (o + r < rows ? o + r : rows - 1) * m;
            NAME(tile)(a, w, m, found);
            for (int e = 0; e < 4 && i + e < n; e++)
                for (int r = 0; r < 2 && o + r < rows; r++)
                    sums[i + e] += found[e][r] * (weight ? weight[(i + e) * rows + o + r] : 1);
        }
}

/* Gradients x [n, m], times a factor, with k directions [m]; without a grid, nothing is counted. With a factor other
 * than 1 a row has PIECE numbers at most: some rows at a time are multiplied, and looked at where they lie then. */
int NAME(block_statistics)(const Grid *g, const real *x, double factor, int64_t n, int64_t m, const real *const *v,
                           int64_t k, double *sums, int64_t *counts) {
    real piece[PIECE];
    const int64_t rows = factor == 1 || m == 0 ? n : PIECE / m;
    Table h;
    if (g != NULL) {
        memset(counts, 0, (size_t)(g->bins + 4) * sizeof *counts);
        if (table_open(&h, g, counts)) return 1;
    }
    for (int64_t begin = 0; begin < n; begin += rows) {
        const int64_t count = n - begin < rows ? n - begin : rows;
        const real *here = x + begin * m;
        if (factor != 1) {
            for (int64_t j = 0; j < count * m; j++) piece[j] = here[j] * (real)factor;
            here = piece;
        }
        for (int64_t i = 0; i < count; i++) sums[begin + i] = NAME(square)(here + i * m, m);
        for (int64_t d = 0; d < k; d++) NAME(project)(here, count, m, v[d], 1, NULL, sums + (1 + d) * n + begin);
        if (g != NULL) NAME(flat)(g, &h, here, count * m);
    }
    if (g != NULL) table_close(&h), ordered(g, counts);
    return 0;
}

/* Gradients b[n, o] a[n, i] of factors a [n, na] and b [n, nb] with k directions [nb, na]. */
int NAME(outer_statistics)(const Grid *g, const real *a, const real *b, int64_t n, int64_t na, int64_t nb,
                           const real *const *v, int64_t k, double *sums, int64_t *counts) {
    for (int64_t i = 0; i < n; i++) sums[i] = NAME(square)(a + i * na, na) * NAME(square)(b + i * nb, nb);
    for (int64_t d = 0; d < k; d++) NAME(project)(a, n, na, v[d], nb, b, sums + (1 + d) * n);
    if (g == NULL) return 0;
    memset(counts, 0, (size_t)(g->bins + 4) * sizeof *counts);
    const int failed = NAME(count_outer)(g, a, b, n, na, nb, NULL, counts);
    return ordered(g, counts), failed;
}

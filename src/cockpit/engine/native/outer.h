/* Histograms of all products b[n, o] * a[n, i], which are never written out. Included once for each type `real`.
 *
 * What can be known without forming a product is counted wholesale, and exactly, because rounding is monotone:
 * a zero factor makes zeros; if |b| max|a| is small (see Grid), each product's row follows from its sign, unless it
 * underflows to zero, which |b| min|a| > 0 excludes. The rest is formed and counted block by block.
 */

typedef struct {
    int64_t n, positive;
    real least, most; /* of magnitudes */
    int finite;
} NAME(Factor);

/* Magnitudes and signs of values that are not zero. */
static NAME(Factor) NAME(describe)(const real *restrict x, int64_t n) {
    integer low = INTEGER_MAX, high = 0, bits;
    int64_t positive = 0;
    for (int64_t j = 0; j < n; j++) {
        memcpy(&bits, x + j, sizeof bits);
        integer magnitude = bits & INTEGER_MAX; /* in the order of magnitudes, then infinity, then NaN */
        low = magnitude < low ? magnitude : low;
        high = magnitude > high ? magnitude : high;
    }
    for (int64_t j = 0; j < n; j++) positive += x[j] > 0;
    NAME(Factor) f = {.n = n, .positive = positive, .least = 1, .most = 0};
    if (n) memcpy(&f.least, &low, sizeof low), memcpy(&f.most, &high, sizeof high);
    f.finite = f.most - f.most == 0;
    return f;
}

/* Keep the values that are not zero, and where they were if `where` is given; both have room for PADDING more. */
static NAME(Factor) NAME(nonzero)(const real *restrict x, int64_t n, real *restrict kept, int32_t *restrict where) {
    int64_t k = 0, j = 0;
#ifdef COMPRESS
    for (; j + WIDE <= n; j += WIDE) k += COMPRESS(x + j, kept + k, (int32_t)j, where ? where + k : NULL);
#endif
    for (; j < n; j++) {
        if (where) where[k] = (int32_t)j;
        kept[k] = x[j], k += x[j] != 0;
    }
    return NAME(describe)(kept, k);
}

/* Whether every product of `magnitude` with the factor is in one of the two rows at zero, on the side of its sign. */
static inline int NAME(is_small)(const Grid *g, real magnitude, NAME(Factor) f) {
    return magnitude * f.most <= (real)g->small && magnitude * f.least > 0;
}

/* Count all products of the small values of x with the other factor by their signs; keep the rest of x. To part them
 * takes as long as some products: a few are left where they are. */
static NAME(Factor) NAME(peel)(const Grid *g, Table *h, real *x, NAME(Factor) f, NAME(Factor) other) {
    enum { FEW = 8 };
    int64_t kept = 0, positive = 0, all = f.n, some = 0;
    for (int64_t j = 0; j < all; j++) some += NAME(is_small)(g, ABS(x[j]), other);
    if (some < all && some * FEW <= all) return f;
    if (NAME(is_small)(g, f.most, other) && NAME(is_small)(g, f.least, other)) positive = f.positive;
    else
        for (int64_t j = 0; j < all; j++) {
            real v = x[j];
            int small = NAME(is_small)(g, ABS(v), other);
            positive += small & (v > 0);
            x[kept] = v, kept += !small;
        }
    int64_t negative = all - kept - positive;
    int64_t below = positive * (other.n - other.positive) + negative * other.positive;
    h->out[g->below] += below;
    h->out[g->zero] += (all - kept) * other.n - below;
    return kept == all ? f : NAME(describe)(x, kept);
}

/* A factor in ascending order, and for cells of equal width where each begins; empty if values are too clustered. */
typedef struct {
    real *value;
    int32_t *begin;
    int64_t n, cells;
    real low, density; /* a value's cell is (value - low) * density */
} NAME(Sorted);

static inline int64_t NAME(cell)(const NAME(Sorted) *s, real x) {
    real v = (x - s->low) * s->density, last = (real)(s->cells - 1);
    v = v > 0 ? v : 0; /* also if it is NaN */
    return (int64_t)(v < last ? v : last);
}

static void NAME(sort)(NAME(Sorted) *s, const real *x, int64_t n, real low, real high) {
    const int64_t cells = s->cells = 2 * n;
    int32_t *begin = s->begin;
    int64_t crowd = 0;
    s->n = 0, s->low = low, s->density = (real)cells / (high - low);
    if (!(s->density > 0 && s->density - s->density == 0)) return;
    memset(begin, 0, (size_t)(cells + 1) * sizeof *begin);
    for (int64_t j = 0; j < n; j++) begin[NAME(cell)(s, x[j]) + 1]++;
    for (int64_t c = 1; c <= cells; c++) {
        crowd += (int64_t)begin[c] * begin[c];
        begin[c] += begin[c - 1];
    }
    if (crowd > 32 * n) return; /* the last step below would be long */
    for (int64_t j = n - 1; j >= 0; j--) s->value[--begin[NAME(cell)(s, x[j]) + 1]] = x[j];
    for (int64_t c = 0; c < cells; c++) begin[c] = begin[c + 1]; /* each end has come down to its beginning */
    for (int64_t j = 1; j < n; j++) {
        real v = s->value[j];
        int64_t k = j;
        for (; k > 0 && s->value[k - 1] > v; k--) s->value[k] = s->value[k - 1];
        s->value[k] = v;
    }
    s->n = n;
}

/* Count b times every value, which reach from row `from` to row `to`, by where the products cross each threshold:
 * a search from a guess, by the products themselves. */
static void NAME(crossings)(const Grid *g, Table *h, const NAME(Sorted) *s, real b, int32_t from, int32_t to) {
    const real *t = g->threshold, *value = s->value, inverse = 1 / b;
    const int rising = b > 0;
    int64_t above = s->n;
    for (int32_t r = from; r < to; r++) {
        const real edge = t[r + 1];
        int64_t j = s->begin[NAME(cell)(s, edge * inverse)];
        while (j < s->n && (b * value[j] >= edge) != rising) j++;
        while (j > 0 && (b * value[j - 1] >= edge) == rising) j--;
        const int64_t next = rising ? s->n - j : j;
        h->out[r] += above - next;
        above = next;
    }
    h->out[to] += above;
}

/* Count the products of those b with all of a, which are few, that cross few thresholds, by comparing all of them with
 * each; returns how many b are left, moved to the front. What is behind a, up to a multiple of PADDING, becomes NaN,
 * which is above nothing. */
static int64_t NAME(compared)(const Grid *g, Table *h, real *a, int64_t na, real *b, int64_t nb) {
    enum { MOST = 12 };
    const int padded = (int)((na + PADDING - 1) / PADDING * PADDING);
    const real *t = g->threshold;
    real low, high, ends[BLOCK], product[BLOCK];
    int32_t row[BLOCK];
    int64_t kept = 0;
    NAME(extent)(a, (int)na, &low, &high);
    for (int j = (int)na; j < padded; j++) a[j] = NAN;
    for (int64_t k = 0; k < nb; k += BLOCK / 2) {
        int size = (int)(nb - k < BLOCK / 2 ? nb - k : BLOCK / 2);
        for (int j = 0; j < size; j++) ends[2 * j] = b[k + j] * low, ends[2 * j + 1] = b[k + j] * high;
        NAME(rows)(g, ends, 2 * size, row);
        for (int j = 0; j < size; j++) {
            const real v = b[k + j];
            int32_t from = row[2 * j + (v < 0)], to = row[2 * j + (v > 0)], above = (int32_t)na;
            if (to - from > MOST) {
                b[kept++] = v;
                continue;
            }
            for (int i = 0; i < padded; i++) product[i] = v * a[i];
            for (int32_t r = from; r < to; r++) {
                const real edge = t[r + 1];
                int32_t next = 0;
                for (int i = 0; i < padded; i += PADDING)
                    for (int l = 0; l < PADDING; l++) next += product[i + l] >= edge;
                h->out[r] += above - next;
                above = next;
            }
            h->out[to] += above;
        }
    }
    return kept;
}

/* Count the products of those b with all of a that cross few thresholds; returns how many b are left, moved to the
 * front. In units of one product formed and counted, a crossing costs about CROSSING, a value to be sorted SORTING. */
static int64_t NAME(searched)(const Grid *g, Table *h, NAME(Sorted) *s, const real *a, int64_t na, real *b,
                              int64_t nb) {
    enum { CROSSING = 10, SORTING = 14 };
    real low, high, ends[BLOCK];
    int32_t row[BLOCK];
    int64_t gain = 0, kept = 0;
    NAME(extent)(a, (int)na, &low, &high);
    for (int sorted = 0; sorted < 2; sorted++) {
        for (int64_t k = 0; k < nb; k += BLOCK / 2) {
            int size = (int)(nb - k < BLOCK / 2 ? nb - k : BLOCK / 2);
            for (int j = 0; j < size; j++) ends[2 * j] = b[k + j] * low, ends[2 * j + 1] = b[k + j] * high;
            NAME(rows)(g, ends, 2 * size, row);
            for (int j = 0; j < size; j++) {
                int32_t from = row[2 * j + (b[k + j] < 0)], to = row[2 * j + (b[k + j] > 0)];
                int64_t cost = (int64_t)CROSSING * (to - from);
                if (!sorted) gain += cost < na ? na - cost : 0;
                else if (cost < na) NAME(crossings)(g, h, s, b[k + j], from, to);
                else b[kept++] = b[k + j];
            }
        }
        if (!sorted && gain > SORTING * na) NAME(sort)(s, a, na, low, high);
        if (!sorted && s->n == 0) return nb;
    }
    return kept;
}

/* Count products one by one; short rows share a block. */
static void NAME(products)(const Grid *g, Table *h, const real *a, int64_t na, const real *b, int64_t nb) {
    real block[BLOCK];
    int fill = 0;
    for (int64_t k = 0; k < nb; k++) {
        for (int64_t i = 0; i < na;) {
            int size = (int)(na - i < BLOCK - fill ? na - i : BLOCK - fill);
            for (int j = 0; j < size; j++) block[fill + j] = b[k] * a[i + j];
            i += size, fill += size;
            if (fill == BLOCK) NAME(block)(g, h, block, fill), fill = 0;
        }
        if (fill > BLOCK / 2 || (fill && k + 1 == nb)) NAME(block)(g, h, block, fill), fill = 0;
    }
}

/* Histogram of the products of a [n, na] and b [n, nb]; `kept` has room for na + nb values, each with PADDING. */
static void NAME(outer)(const Grid *g, Table *h, NAME(Sorted) *s, const real *a, const real *b, int64_t n, int64_t na,
                        int64_t nb, real *kept) {
    for (int64_t i = 0; i < n; i++, a += na, b += nb) {
        real *x = kept, *y = kept + na + PADDING;
        NAME(Factor) f = NAME(nonzero)(a, na, x, NULL), e = NAME(nonzero)(b, nb, y, NULL);
        if (!f.finite || !e.finite || isinf(f.most * e.most)) {
            NAME(products)(g, h, a, na, b, nb);
            continue;
        }
        h->out[g->zero] += na * nb - f.n * e.n;
        if (f.n && e.n) e = NAME(peel)(g, h, y, e, f);
        if (f.n && e.n) f = NAME(peel)(g, h, x, f, e);
        if (f.n < e.n) { /* the longer factor is the inner one */
            real *z = x;
            NAME(Factor) d = f;
            x = y, y = z, f = e, e = d;
        }
        s->n = 0;
        if (e.n)
            e.n = f.n <= BLOCK - PADDING ? NAME(compared)(g, h, x, f.n, y, e.n) : NAME(searched)(g, h, s, x, f.n, y, e.n);
        NAME(products)(g, h, x, f.n, y, e.n);
    }
}

static int NAME(count_outer_flat)(const Grid *g, Table *h, const real *a, const real *b, int64_t n, int64_t na,
                                  int64_t nb) {
    const int64_t longer = na > nb ? na : nb;
    real *kept = malloc((size_t)(na + nb + 2 * PADDING) * sizeof *kept);
    NAME(Sorted) s = {.value = malloc((size_t)(longer + 1) * sizeof(real)),
                      .begin = malloc((size_t)(2 * longer + 1) * sizeof(int32_t))};
    const int failed = !kept || !s.value || !s.begin;
    if (!failed) NAME(outer)(g, h, &s, a, b, n, na, nb, kept);
    free(kept), free(s.value), free(s.begin);
    return failed;
}

/* Histograms of all products b[n, o] * a[n, i] by the column of each position (o, i). Included for each type `real`.
 *
 * For given o, an example is small (see outer.h) or not. For given (o, i), the small examples whose product is negative
 * are those where the signs of b[n, o] and a[n, i] differ: with one bit for each example, 64 of them cost a few logical
 * operations and a population count. Only products of examples that are not small, with an a[n, i] that is not zero,
 * are formed.
 */

typedef struct {
    int64_t n[CHUNK];                /* for each example how many a[n, i] are not zero */
    real most[CHUNK], least[CHUNK];  /* and their greatest and least magnitude */
    uint64_t usable[WORDS];          /* examples whose products are all finite; the others' are formed */
    uint64_t *positive, *negative;   /* WORDS x na: for each i, the usable examples with a[n, i] > 0, < 0 */
    real *kept;                      /* for each example its a[n, i] that are not zero, and where they were */
    int32_t *where;
    uint64_t *tally; /* 4 copies of the columns: products below zero in the high half, other small ones in the low */
    int64_t tallied; /* since it was last emptied, at most: half a word is enough for that */
} NAME(Signs);

static void NAME(signs)(NAME(Signs) *s, const real *a, const real *b, int n, int64_t na, int64_t nb) {
    memset(s->usable, 0, sizeof s->usable);
    memset(s->positive, 0, (size_t)na * WORDS * sizeof *s->positive);
    memset(s->negative, 0, (size_t)na * WORDS * sizeof *s->negative);
    for (int k = 0; k < n; k++, a += na, b += nb) {
        NAME(Factor) all = NAME(describe)(b, nb), f = NAME(nonzero)(a, na, s->kept + k * na, s->where + k * na);
        s->n[k] = f.n, s->most[k] = f.most, s->least[k] = f.least;
        if (!f.finite || !all.finite || isinf(f.most * all.most)) continue;
        const uint64_t shift = k % 64;
        uint64_t *restrict positive = s->positive + k / 64 * na, *restrict negative = s->negative + k / 64 * na;
        s->usable[k / 64] |= (uint64_t)1 << shift;
        for (int64_t i = 0; i < na; i++) {
            positive[i] |= (uint64_t)(a[i] > 0) << shift;
            negative[i] |= (uint64_t)(a[i] < 0) << shift;
        }
    }
}

static void NAME(empty_tally)(const Grid *g, Table *h, NAME(Signs) *s) {
    for (int64_t c = 0; c < 4 * g->columns; c++) {
        int64_t *out = h->out + c % g->columns;
        out[g->below * g->columns] += (int64_t)(s->tally[c] >> 32);
        out[g->zero * g->columns] += (int64_t)(s->tally[c] & UINT32_MAX);
        s->tally[c] = 0;
    }
    s->tallied = 0;
}

/* For one o, with b its first value: the usable examples that are small with b > 0, with b < 0, and those not small. */
static void NAME(sides)(const Grid *g, const NAME(Signs) *s, const real *b, int n, int64_t nb, uint64_t *restrict plus,
                        uint64_t *restrict minus, uint64_t *restrict large) {
    const real limit = (real)g->small;
    for (int w = 0; w < WORDS; w++) {
        uint64_t above = 0, below = 0, small = 0;
        for (int k = 64 * w; k < n && k < 64 * (w + 1); k++) {
            const real v = b[k * nb], m = ABS(v);
            above |= (uint64_t)(v > 0) << k % 64;
            below |= (uint64_t)(v < 0) << k % 64;
            small |= (uint64_t)((m * s->most[k] <= limit) & (m * s->least[k] > 0)) << k % 64; /* is_small */
        }
        plus[w] = above & small & s->usable[w];
        minus[w] = below & small & s->usable[w];
        large[w] = (above | below) & ~small & s->usable[w];
    }
}

/* Enter what is known by its signs for one o, for which some examples are large. */
static void NAME(by_signs)(const Grid *g, NAME(Signs) *s, const uint64_t *plus, const uint64_t *minus,
                           const uint64_t *large, int64_t na, const int32_t *place, uint64_t usable) {
    const uint64_t *restrict positive = s->positive, *restrict negative = s->negative;
    uint64_t *restrict tally = s->tally;
    const int64_t columns = g->columns;
    for (int64_t i = 0; i < na; i++) {
        uint64_t below = 0, formed = 0;
        for (int w = 0; w < WORDS; w++) {
            const uint64_t p = positive[w * na + i], m = negative[w * na + i];
            below += (uint64_t)__builtin_popcountll((plus[w] & m) | (minus[w] & p));
            formed += (uint64_t)__builtin_popcountll(large[w] & (p | m));
        }
        tally[(i & 3) * columns + place[i]] += (below << 32) + (usable - below - formed);
    }
}

/* The same where no example is large. */
static void NAME(by_signs_alone)(const Grid *g, NAME(Signs) *s, const uint64_t *plus, const uint64_t *minus,
                                 int64_t na, const int32_t *place, uint64_t usable) {
    const uint64_t *restrict positive = s->positive, *restrict negative = s->negative;
    uint64_t *restrict tally = s->tally;
    const int64_t columns = g->columns;
    for (int64_t i = 0; i < na; i++) {
        uint64_t below = 0;
        for (int w = 0; w < WORDS; w++)
            below += (uint64_t)__builtin_popcountll((plus[w] & negative[w * na + i]) | (minus[w] & positive[w * na + i]));
        tally[(i & 3) * columns + place[i]] += (below << 32) + (usable - below);
    }
}

/* Form and count b * x by the columns of the positions `where` (all of them in order if NULL, and not all finite). */
static void NAME(row_by_column)(const Grid *g, Table *h, const real *x, real b, int64_t n, const int32_t *where,
                                const int32_t *place) {
    const int32_t columns = (int32_t)g->columns;
    real block[BLOCK];
    int32_t index[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        int size = (int)(n - i < BLOCK ? n - i : BLOCK);
        for (int j = 0; j < size; j++) block[j] = b * x[i + j];
        if (where == NULL) NAME(block_by_column)(g, h, block, place + i, size);
        else {
            NAME(rows)(g, block, size, index);
            for (int j = 0; j < size; j++) index[j] *= columns;
            table_enter_at(h, index, place, where + i, size);
        }
    }
}

static void NAME(outer_by_column)(const Grid *g, Table *h, NAME(Signs) *s, const real *a, const real *b, int n,
                                  int64_t na, int64_t nb, const int32_t *place) {
    uint64_t usable = 0;
    NAME(signs)(s, a, b, n, na, nb);
    for (int w = 0; w < WORDS; w++) usable += (uint64_t)__builtin_popcountll(s->usable[w]);
    for (int64_t o = 0; o < nb; o++, place += na) {
        uint64_t plus[WORDS], minus[WORDS], large[WORDS], any = 0;
        NAME(sides)(g, s, b + o, n, nb, plus, minus, large);
        for (int w = 0; w < WORDS; w++) any |= large[w];
        if (any) NAME(by_signs)(g, s, plus, minus, large, na, place, usable);
        else NAME(by_signs_alone)(g, s, plus, minus, na, place, usable);
        s->tallied += CHUNK * na;
        for (int k = 0; k < n; k++) {
            if (!(s->usable[k / 64] >> k % 64 & 1))
                NAME(row_by_column)(g, h, a + k * na, b[k * nb + o], na, NULL, place);
            else if (large[k / 64] >> k % 64 & 1) {
                NAME(row_by_column)(g, h, s->kept + k * na, b[k * nb + o], s->n[k], s->where + k * na, place);
            }
        }
        if (s->tallied > INT32_MAX) NAME(empty_tally)(g, h, s);
    }
    NAME(empty_tally)(g, h, s);
}

static int NAME(count_outer_by_column)(const Grid *g, Table *h, const real *a, const real *b, int64_t n, int64_t na,
                                       int64_t nb, const int32_t *place) {
    NAME(Signs) s = {.tallied = 0};
    s.kept = malloc((size_t)(CHUNK * na + PADDING) * sizeof *s.kept);
    s.where = malloc((size_t)(CHUNK * na + PADDING) * sizeof *s.where);
    s.positive = malloc((size_t)(WORDS * na + 1) * sizeof *s.positive);
    s.negative = malloc((size_t)(WORDS * na + 1) * sizeof *s.negative);
    s.tally = calloc((size_t)(4 * g->columns), sizeof *s.tally);
    const int failed = !s.kept || !s.where || !s.positive || !s.negative || !s.tally;
    for (int64_t i = 0; i < n && !failed; i += CHUNK) {
        int size = (int)(n - i < CHUNK ? n - i : CHUNK);
        NAME(outer_by_column)(g, h, &s, a + i * na, b + i * nb, size, na, nb, place);
    }
    free(s.kept), free(s.where), free(s.positive), free(s.negative), free(s.tally);
    return failed;
}

static int NAME(count_outer)(const Grid *g, const real *a, const real *b, int64_t n, int64_t na, int64_t nb,
                             const int32_t *place, int64_t *out) {
    Table h;
    if (table_open(&h, g, out)) return 1;
    const int failed = place == NULL ? NAME(count_outer_flat)(g, &h, a, b, n, na, nb)
                                     : NAME(count_outer_by_column)(g, &h, a, b, n, na, nb, place);
    table_close(&h);
    return failed;
}

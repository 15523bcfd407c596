/* Rows of values, and histograms of written-out values. Included once for each type `real`. */

/* The row of one value, whatever it is. */
static int32_t NAME(row)(const Grid *g, real x) {
    const real *t = g->threshold;
    if (!(x - x == 0)) return (int32_t)g->bins + (x == x ? 3 : 2);
    int32_t low = 0, high = (int32_t)g->bins + 2; /* t[low] <= x < t[high] */
    while (high - low > 1) {
        int32_t middle = (low + high) / 2;
        if (x >= t[middle]) low = middle;
        else high = middle;
    }
    return low;
}

/* The rows of finite values: by an affine guess, in the way that was found right (or nearly) for this grid. */
static void NAME(rows)(const Grid *g, const real *restrict x, int n, int32_t *restrict row) {
    const real *t = g->threshold;
    const real under = (real)g->under, over = t[g->bins + 1];
    const real scale = (real)g->scale, rest = (real)(g->scale - (double)scale);
    const int32_t first = (int32_t)g->first, bins = (int32_t)g->bins;
    if (g->way == FUSED) {
        /* x * scale is had to twice the precision: rounded, to take its floor, and by what it differs from that. */
        for (int j = 0; j < n; j++) {
            real v = x[j] > under ? x[j] : under;
            v = v < over ? v : over;
            real tail = v * rest, whole = FLOOR(FMA(v, scale, tail));
            int32_t r = (int32_t)whole + first - (FMA(v, scale, -whole) + tail < 0);
            row[j] = (r < bins ? r : bins) + (x[j] >= over);
        }
        return;
    }
    const double least = -(double)first, most = (double)(bins - first) + 0.5;
    for (int j = 0; j < n; j++) {
        double v = ((double)x[j] - g->pivot) * g->scale;
        v = v > least ? v : least;
        v = v < most ? v : most;
        row[j] = (int32_t)floor(v) + first + (x[j] >= over);
    }
    if (g->way == CORRECTED)
        for (int j = 0; j < n; j++) {
            int32_t r = row[j];
            row[j] = r + (x[j] >= t[r + 1]) - (x[j] < t[r]);
        }
}

/* For the choice of a way: the rows of finite values [n]; returns whether this processor is slow at it. */
int NAME(try_rows)(const Grid *g, const real *x, int64_t n, int32_t *row) {
    NAME(rows)(g, x, (int)n, row);
    return g->way == FUSED && !FAST_FMA;
}

/* Least and greatest of a block; returns whether all values are finite.
 *
 * They are compared as integers in the same order, which compilers vectorise: a number's bits, those of negative
 * numbers but the sign inverted. NaN are beyond the infinities of their sign.
 */
static int NAME(extent)(const real *restrict x, int n, real *least, real *greatest) {
    integer low = INTEGER_MAX, high = -INTEGER_MAX - 1, bits;
    for (int j = 0; j < n; j++) {
        memcpy(&bits, x + j, sizeof bits);
        integer key = bits ^ (bits >> (8 * sizeof bits - 1) & INTEGER_MAX);
        low = key < low ? key : low;
        high = key > high ? key : high;
    }
    low ^= low >> (8 * sizeof bits - 1) & INTEGER_MAX;
    high ^= high >> (8 * sizeof bits - 1) & INTEGER_MAX;
    memcpy(least, &low, sizeof bits);
    memcpy(greatest, &high, sizeof bits);
    return *least - *least == 0 && *greatest - *greatest == 0;
}

/* Count a block. Where it reaches over few edges, comparing with each is cheaper than one counter for each value. */
static void NAME(block)(const Grid *g, Table *h, const real *restrict x, int n) {
    const real *t = g->threshold;
    int32_t index[BLOCK];
    real least, greatest;
    if (!NAME(extent)(x, n, &least, &greatest)) {
        for (int j = 0; j < n; j++) h->out[NAME(row)(g, x[j])]++;
        return;
    }
    real ends[2] = {least, greatest};
    NAME(rows)(g, ends, 2, index);
    int32_t from = index[0], to = index[1];
    if (to - from <= 4) {
        int32_t above = n;
        for (int32_t r = from; r < to; r++) {
            int32_t next = 0;
            for (int j = 0; j < n; j++) next += x[j] >= t[r + 1];
            h->out[r] += above - next;
            above = next;
        }
        h->out[to] += above;
    } else {
        NAME(rows)(g, x, n, index);
        table_enter(h, index, n);
    }
}

/* Count a block of finite values that have columns. */
static void NAME(finite_by_column)(const Grid *g, Table *h, const real *restrict x, const int32_t *restrict place,
                                   int n) {
    int32_t index[BLOCK];
    const int32_t columns = (int32_t)g->columns;
    NAME(rows)(g, x, n, index);
    for (int j = 0; j < n; j++) index[j] = index[j] * columns + place[j];
    table_enter(h, index, n);
}

/* Count a block whose values have columns. */
static void NAME(block_by_column)(const Grid *g, Table *h, const real *restrict x, const int32_t *restrict place,
                                  int n) {
    real least, greatest;
    if (NAME(extent)(x, n, &least, &greatest)) NAME(finite_by_column)(g, h, x, place, n);
    else
        for (int j = 0; j < n; j++) h->out[NAME(row)(g, x[j]) * g->columns + place[j]]++;
}

/* Histogram of x [n]. */
static void NAME(flat)(const Grid *g, Table *h, const real *x, int64_t n) {
    for (int64_t i = 0; i < n; i += BLOCK) NAME(block)(g, h, x + i, (int)(n - i < BLOCK ? n - i : BLOCK));
}

/* Histogram of x [n, m] by the column of each position, place [m].
 *
 * Of blocks with nothing but small values only the negative ones are counted, for each position over all examples
 * (MANY at most); the columns are looked up once at the end.
 */
static void NAME(flat_by_column)(const Grid *g, Table *h, const real *x, int64_t n, int64_t m, const int32_t *place) {
    const real small = (real)g->small;
    for (int64_t tile = 0; tile < m; tile += TILE) {
        int64_t width = m - tile < TILE ? m - tile : TILE, whole[TILE / BLOCK] = {0};
        int32_t negative[TILE] = {0};
        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < width; k += BLOCK) {
                int size = (int)(width - k < BLOCK ? width - k : BLOCK);
                const real *restrict v = x + i * m + tile + k;
                int32_t *restrict count = negative + k;
                real least, greatest;
                if (NAME(extent)(v, size, &least, &greatest) && least >= -small && greatest <= small) {
                    whole[k / BLOCK]++;
                    for (int j = 0; j < size; j++) count[j] += v[j] < 0;
                } else
                    NAME(block_by_column)(g, h, v, place + tile + k, size);
            }
        if ((h->pending += n * width) > INT32_MAX) table_empty(h), h->pending = n * width;
        for (int64_t j = 0; j < width; j++) {
            uint32_t *copy = h->copy + (j & (h->copies - 1)) * h->stride + place[tile + j];
            copy[g->below * g->columns] += (uint32_t)negative[j];
            copy[g->zero * g->columns] += (uint32_t)(whole[j / BLOCK] - negative[j]);
        }
    }
}

static int NAME(count)(const Grid *g, const real *x, int64_t n, int64_t m, const int32_t *place, int64_t *out) {
    Table h;
    if (table_open(&h, g, out)) return 1;
    if (place == NULL) NAME(flat)(g, &h, x, n * m);
    else
        for (int64_t i = 0; i < n; i += MANY)
            NAME(flat_by_column)(g, &h, x + i * m, n - i < MANY ? n - i : MANY, m, place);
    table_close(&h);
    return 0;
}

/* The bins 0..bins-1 of x [n]; what lies outside is in the outer ones, NaN in none (-1). */
int NAME(places)(const Grid *g, const real *x, int64_t n, int32_t *place) {
    const int32_t last = (int32_t)g->bins - 1;
    real least, greatest;
    for (int64_t i = 0; i < n; i += BLOCK, x += BLOCK, place += BLOCK) {
        int size = (int)(n - i < BLOCK ? n - i : BLOCK);
        if (NAME(extent)(x, size, &least, &greatest)) NAME(rows)(g, x, size, place);
        else
            for (int j = 0; j < size; j++)
                place[j] = isinf(x[j]) ? (x[j] > 0 ? last + 1 : 0) : x[j] == x[j] ? NAME(row)(g, x[j]) : -1;
        for (int j = 0; j < size; j++) {
            int32_t r = place[j];
            place[j] = r < 0 ? -1 : r == 0 ? 0 : r > last ? last : r - 1;
        }
    }
    return 0;
}

/* Exact histograms of float32 and float64 values in uniform bins, flat and of outer products.
 *
 * A value's row is the number of thresholds at or below it: 0 under the range, 1..bins the bins, bins+1 over it; rows
 * bins+2 and bins+3 hold NaN and infinite values. A threshold is the smallest number of the values' type that is not
 * below an edge (above, for the last edge: the last bin is closed), so comparing with thresholds is comparing with the
 * float64 edges. out[row * columns + column] is incremented; it is int64 [(bins + 4) * columns].
 *
 * Rounding must be that of IEEE arithmetic in the type at hand: no contraction to fused operations, no wider
 * registers, no reordering of sums. The flags say so, and the next lines insist.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0 || defined(__FAST_MATH__)
#error "floating-point arithmetic must round to its own type"
#endif

/* How a value's row is guessed: floor(x * scale) in twice the precision, floor((x - pivot) * scale) in float64, or the
 * latter, then corrected by one up or down. The first needs an edge at zero. */
enum { FUSED, PLAIN, CORRECTED };

typedef struct {
    int64_t bins, columns, way;
    double pivot, scale;
    int64_t first;         /* the row that begins at the pivot */
    int64_t zero, below;   /* the rows of 0 and of the negative number next to it */
    double small;          /* x is in row `zero` if 0 <= x <= small, in row `below` if -small <= x < 0 */
    double under;          /* the greatest value in row 0 */
    const void *threshold; /* -inf, the thresholds, +inf: row r is threshold[r] <= x < threshold[r + 1] */
} Grid;

enum { LANES = 16, PADDING = 16, BLOCK = 256, COPIES = 8, TILE = 2048, CHUNK = 128, WORDS = CHUNK / 64, MANY = 1 << 19, PIECE = 1 << 13 };

/* Several copies of the counters: two equal values in succession do not wait for each other's store. */
typedef struct {
    uint32_t *copy;
    int64_t size, stride, copies; /* of copies: COPIES, or fewer where a table is large; a power of two */
    int64_t pending;              /* counted since they were last emptied: 32 bits are enough for that */
    int64_t *out;
} Table;

static int table_open(Table *t, const Grid *g, int64_t *out) {
    t->size = (g->bins + 4) * g->columns;
    t->stride = (t->size + 15) / 16 * 16 + 16; /* the same row of two copies is in different sets of the cache */
    t->copies = t->size <= 512 ? COPIES : t->size <= 2048 ? 4 : 2;
    t->pending = 0;
    t->out = out;
    t->copy = calloc((size_t)(t->stride * t->copies), sizeof(uint32_t));
    return t->copy == NULL;
}

static void table_empty(Table *t) {
    for (int64_t c = 0; c < t->copies; c++)
        for (int64_t i = 0; i < t->size; i++) t->out[i] += t->copy[c * t->stride + i];
    memset(t->copy, 0, (size_t)(t->stride * t->copies) * sizeof(uint32_t));
    t->pending = 0;
}

static void table_close(Table *t) {
    table_empty(t);
    free(t->copy);
}

/* Enter the indices of one block. */
static void table_enter(Table *t, const int32_t *restrict index, int n) {
    uint32_t *restrict h = t->copy;
    const int64_t s = t->stride;
    int j = 0;
    if (t->copies == COPIES)
        for (; j + 8 <= n; j += 8) {
            h[index[j]]++, h[s + index[j + 1]]++, h[2 * s + index[j + 2]]++, h[3 * s + index[j + 3]]++;
            h[4 * s + index[j + 4]]++, h[5 * s + index[j + 5]]++, h[6 * s + index[j + 6]]++, h[7 * s + index[j + 7]]++;
        }
    else if (t->copies == 4)
        for (; j + 4 <= n; j += 4)
            h[index[j]]++, h[s + index[j + 1]]++, h[2 * s + index[j + 2]]++, h[3 * s + index[j + 3]]++;
    else
        for (; j + 2 <= n; j += 2) h[index[j]]++, h[s + index[j + 1]]++;
    for (; j < n; j++) h[index[j]]++;
    if ((t->pending += n) > INT32_MAX) table_empty(t);
}

/* Enter the indices of one block, each moved by the place of where it comes from: to gather these first takes longer. */
static void table_enter_at(Table *t, const int32_t *restrict index, const int32_t *restrict place,
                           const int32_t *restrict where, int n) {
    uint32_t *restrict h = t->copy, *restrict other = h + t->stride;
    int j = 0;
    for (; j + 2 <= n; j += 2) h[index[j] + place[where[j]]]++, other[index[j + 1] + place[where[j + 1]]]++;
    if (j < n) h[index[j] + place[where[j]]]++;
    if ((t->pending += n) > INT32_MAX) table_empty(t);
}

/* Put counts by rows, of one column, into the order in which they are handed out: underflow behind the bins. */
static void ordered(const Grid *g, int64_t *counts) {
    const int64_t under = counts[0];
    memmove(counts, counts + 1, (size_t)g->bins * sizeof *counts);
    counts[g->bins] = under;
}

/* A table of counts by rows and columns, one column more than there are if some positions have none. */
typedef struct {
    Grid grid;
    int64_t columns; /* without that one */
    const int32_t *place;
    int32_t *own; /* places with a column for those that have none */
    int64_t *table;
} Columns;

static int columns_open(Columns *c, const Grid *g, const int32_t *place, int64_t positions) {
    int32_t least = 0, greatest = 0;
    c->grid = *g, c->columns = g->columns, c->place = place, c->own = NULL, c->table = NULL;
    for (int64_t j = 0; j < positions && place != NULL; j++) {
        least = place[j] < least ? place[j] : least;
        greatest = place[j] > greatest ? place[j] : greatest;
    }
    if (least < -1 || greatest >= g->columns) return 2;
    if (least < 0) {
        c->place = c->own = malloc((size_t)positions * sizeof *c->own);
        if (c->own == NULL) return 1;
        for (int64_t j = 0; j < positions; j++) c->own[j] = place[j] < 0 ? (int32_t)c->columns : place[j];
        c->grid.columns++;
    }
    c->table = calloc((size_t)((g->bins + 4) * c->grid.columns), sizeof *c->table);
    return c->table == NULL;
}

static int columns_close(Columns *c, int failed, int64_t *counts) {
    const int64_t bins = c->grid.bins, width = c->grid.columns, columns = c->columns;
    int64_t *rest = counts + bins * columns; /* below, above, NaN, infinite */
    for (int64_t r = 0; r < bins && !failed; r++)
        memcpy(counts + r * columns, c->table + (r + 1) * width, (size_t)columns * sizeof *counts);
    for (int64_t k = 0; k < 4 && !failed; k++) {
        const int64_t *row = c->table + (k == 0 ? 0 : k == 1 ? bins + 1 : bins + k) * width;
        rest[k] = 0;
        for (int64_t j = 0; j < columns; j++) rest[k] += row[j];
    }
    for (int64_t r = 0; r < bins + 4 && width > columns && !failed; r++) rest[2] += c->table[r * width + columns];
    free(c->own), free(c->table);
    return failed;
}

#define JOIN(a, b) a##_##b
#define EXPAND(a, b) JOIN(a, b)
#define NAME(a) EXPAND(a, real)

#ifdef FP_FAST_FMAF
#define FAST_FMAF 1
#else
#define FAST_FMAF 0
#endif
#ifdef FP_FAST_FMA
#define FAST_FMAD 1
#else
#define FAST_FMAD 0
#endif

/* Copy those of WIDE values that are not zero to the front, and where they were if that is wanted; return how many they
 * are. */
#ifdef __AVX512VL__
#include <immintrin.h>
static inline int compress_float(const float *x, float *to, int32_t first, int32_t *where) {
    const __m512 v = _mm512_loadu_ps(x);
    const __mmask16 some = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps(some, v));
    if (where) _mm512_storeu_si512(where, _mm512_maskz_compress_epi32(some, _mm512_add_epi32(lane, _mm512_set1_epi32(first))));
    return __builtin_popcount(some);
}
static inline int compress_double(const double *x, double *to, int32_t first, int32_t *where) {
    const __m512d v = _mm512_loadu_pd(x);
    const __mmask8 some = _mm512_cmp_pd_mask(v, _mm512_setzero_pd(), _CMP_NEQ_UQ);
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm512_storeu_pd(to, _mm512_maskz_compress_pd(some, v));
    if (where)
        _mm256_storeu_si256((__m256i *)where, _mm256_maskz_compress_epi32(some, _mm256_add_epi32(lane, _mm256_set1_epi32(first))));
    return __builtin_popcount(some);
}
#define COMPRESS NAME(compress)
#define WIDE (64 / (int64_t)sizeof(real))
#endif

#define MULTIPLY_ADD(a, b, c) (FAST_FMA ? FMA(a, b, c) : (a) * (b) + (c))

#define real float
#define integer int32_t
#define INTEGER_MAX INT32_MAX
#define ABS fabsf
#define FLOOR floorf
#define FMA fmaf
#define FAST_FMA FAST_FMAF
#include "flat.h"
#include "outer.h"
#include "outer_by_column.h"
#include "fused.h"
#include "counted.h"
#undef real
#undef integer
#undef INTEGER_MAX
#undef ABS
#undef FLOOR
#undef FMA
#undef FAST_FMA
#define real double
#define integer int64_t
#define INTEGER_MAX INT64_MAX
#define ABS fabs
#define FLOOR floor
#define FMA fma
#define FAST_FMA FAST_FMAD
#include "flat.h"
#include "outer.h"
#include "outer_by_column.h"
#include "fused.h"
#include "counted.h"

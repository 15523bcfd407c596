/* Histograms as they are handed out: bins by columns, then what is below, above, NaN and infinite. Included once for each
 * type `real`. A position without a column (place -1) counts as NaN. They return 1 where there is no memory, 2 where
 * `place` holds what is no column. */

int NAME(counted)(const Grid *g, const real *x, int64_t n, int64_t m, const int32_t *place, int64_t *counts) {
    Columns c;
    int failed = columns_open(&c, g, place, m);
    if (!failed) failed = NAME(count)(&c.grid, x, n, m, c.place, c.table);
    return columns_close(&c, failed, counts);
}

int NAME(counted_outer)(const Grid *g, const real *a, const real *b, int64_t n, int64_t na, int64_t nb,
                        const int32_t *place, int64_t *counts) {
    Columns c;
    int failed = columns_open(&c, g, place, na * nb);
    if (!failed) failed = NAME(count_outer)(&c.grid, a, b, n, na, nb, c.place, c.table);
    return columns_close(&c, failed, counts);
}

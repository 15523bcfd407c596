/* Included once for each type `real`. */

/* Of rows of n numbers p with gradients d, and s = p (d - <p, d>): the derivatives by p and d of <v, s>. */
int NAME(softmax_twice)(const real *restrict p, const real *restrict d, const real *restrict v, int64_t rows, int64_t n,
                        real *restrict by_p, real *restrict by_d) {
    for (int64_t r = 0; r < rows; r++, p += n, d += n, v += n, by_p += n, by_d += n) {
        real of_d[LANES] = {0}, of_v[LANES] = {0};
        double pd = 0, pv = 0;
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES)
            for (int l = 0; l < LANES; l++) of_d[l] += p[i + l] * d[i + l], of_v[l] += p[i + l] * v[i + l];
        for (; i < n; i++) pd += (double)p[i] * d[i], pv += (double)p[i] * v[i];
        for (int l = 0; l < LANES; l++) pd += of_d[l], pv += of_v[l];
        const real a = (real)pd, b = (real)pv;
        for (int64_t j = 0; j < n; j++) {
            by_p[j] = v[j] * (d[j] - a) - d[j] * b;
            by_d[j] = p[j] * (v[j] - b);
        }
    }
    return 0;
}

/* Columns `first` to `end` [end - first, n, classes] of the roots of weight (diag(p) - p p^T) for probabilities p
 * [n, classes], as `cockpit.engine.curvature.loss_roots` has them. */
int NAME(softmax_columns)(const real *restrict p, const real *restrict weight, int64_t n, int64_t classes, int64_t first,
                          int64_t end, double tiny, real *restrict out) {
    for (int64_t i = 0; i < n; i++, p += classes, out += classes) {
        real head = p[0] > (real)tiny ? p[0] : (real)tiny, whole = p[0];
        for (int64_t c = 1; c <= end; c++) {
            const real root = (real)sqrt(head);
            whole += p[c];
            head = whole > (real)tiny ? whole : (real)tiny;
            if (c <= first) continue;
            real *restrict column = out + (c - 1 - first) * n * classes;
            const real share = (real)sqrt(p[c] / head * weight[i]), factor = share / root;
            for (int64_t j = 0; j < c; j++) column[j] = factor * p[j];
            column[c] = -share * root;
            for (int64_t j = c + 1; j < classes; j++) column[j] = 0;
        }
    }
    return 0;
}

/* Included once for each type `real`. */

/* One tap at all places of one line of the image; where the tap lies outside of it, there are zeros. */
static inline void NAME(line)(const Axis *x, const real *restrict image, int64_t start, int64_t low, int64_t high,
                              real *restrict to) {
    for (int64_t k = 0; k < low; k++) to[k] = 0;
    const real *restrict from = image + start;
    if (x->stride == 1)
        for (int64_t k = low; k < high; k++) to[k] = from[k];
    else
        for (int64_t k = low; k < high; k++) to[k] = from[k * x->stride];
    for (int64_t k = high; k < x->places; k++) to[k] = 0;
}

/* Patches [n, taps, places] of n images of one channel (axes y, x); of several channels, n is their product. */
int NAME(patches)(const real *images, int64_t n, const Axis *y, const Axis *x, real *out) {
    for (int64_t k = 0; k < n; k++, images += y->size * x->size)
        for (int64_t i = 0; i < y->taps; i++)
            for (int64_t j = 0; j < x->taps; j++) {
                const int64_t top = i * y->dilation - y->before, left = j * x->dilation - x->before;
                const int64_t low = first_from(x, left, 0), high = first_from(x, left, x->size);
                for (int64_t p = 0; p < y->places; p++, out += x->places) {
                    const int64_t at = top + p * y->stride;
                    if (at < 0 || at >= y->size) memset(out, 0, (size_t)x->places * sizeof *out);
                    else NAME(line)(x, images + at * x->size, left, low < high ? low : high, high, out);
                }
            }
    return 0;
}

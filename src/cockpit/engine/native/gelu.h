/* Included once for each type `real`. */

/* Of n numbers x with output gradients d: the derivative by x of what their gradients make of a vector v. */
int NAME(gelu_twice)(const real *restrict x, const real *restrict d, const real *restrict v, int64_t n, int64_t by_tanh,
                     real *restrict out) {
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int size = (int)(n - i < BLOCK ? n - i : BLOCK);
        double bend[BLOCK] = {0};
        for (int j = 0; j < size; j++) bend[j] = x[i + j];
        if (by_tanh) second_by_tanh(bend);
        else second(bend);
        for (int j = 0; j < size; j++) out[i + j] = (real)(bend[j] * d[i + j] * v[i + j]);
    }
    return 0;
}

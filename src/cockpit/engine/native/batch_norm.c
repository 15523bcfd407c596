/* The gradients of batch normalisation, derived once more: what a product with the Hessian needs of them.
 *
 * Images x with output gradients d and weights w (or none: 1) are normalised by mean and scale to z. Wanted are the
 * derivatives by d, x and w of <v, gradient by x> + <a, gradient by w> + <b, gradient by the bias>: for each channel
 * combinations of v, d, z and 1, whose factors are made of five sums.
 */
#include <stdint.h>

enum { BLOCK = 256, LANES = 16, SUMS = 5 };

#define BODY "batch_norm.h"
#include "for_types.h"

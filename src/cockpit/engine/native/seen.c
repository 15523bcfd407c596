/* What a few products tell of a Hessian, as `cockpit.engine.curvature.seen` has it, on matrices of at most MOST rows.
 *
 * Everything is added up in one order, without contractions, so that processors of one kind or another agree.
 */
#include <math.h>
#include <stdint.h>

enum { MOST = 16 };

typedef double matrix[MOST][MOST];

typedef struct {
    double fresh, unseen, low, high, trusted, near, still, change, optimism, known;
} constants;

typedef struct {
    constants of;
    double noise, values[MOST]; /* carried */
    int carried, rows, products, rank;
    matrix gram;       /* of the rows */
    matrix multiplied; /* [products] weights of the rows */
    matrix weights;    /* [rank, rows] of an orthonormal basis, in which all below is expressed */
    matrix held;       /* [carried, rank] */
    matrix directions; /* [products, rank] */
    matrix images;     /* [products, rank] */
    double top, first, mixture[MOST];
} seen;

int64_t seen_bytes(void) { return sizeof(seen); }
int64_t seen_most(void) { return MOST; }

static double dot(const double *a, const double *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* Eigenvalues of the symmetric n x n matrix a, ascending, with eigenvectors in rows: rotations of Jacobi's, by which
 * small eigenvalues of a positive matrix keep their digits. a is lost. */
static void eigen(matrix a, int n, double *values, matrix vectors) {
    double whole = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) vectors[i][j] = i == j;
        whole += dot(a[i], a[i], n);
    }
    for (int sweep = 0; sweep < 50; sweep++) {
        double off = 0;
        for (int p = 0; p < n; p++) off += dot(a[p], a[p], p);
        if (!(off > 1e-36 * whole)) break;
        for (int p = 0; p < n; p++)
            for (int q = p + 1; q < n; q++) {
                if (a[p][q] == 0) continue;
                const double half = (a[q][q] - a[p][p]) / (2 * a[p][q]);
                const double t = (half < 0 ? -1 : 1) / (fabs(half) + sqrt(half * half + 1));
                const double c = 1 / sqrt(t * t + 1), s = t * c, x = t * a[p][q];
                a[p][p] -= x, a[q][q] += x;
                a[p][q] = a[q][p] = 0;
                for (int k = 0; k < n; k++) {
                    const double u = vectors[p][k], v = vectors[q][k];
                    vectors[p][k] = c * u - s * v, vectors[q][k] = s * u + c * v;
                    if (k == p || k == q) continue;
                    const double y = a[p][k], z = a[q][k];
                    a[p][k] = a[k][p] = c * y - s * z;
                    a[q][k] = a[k][q] = s * y + c * z;
                }
            }
    }
    for (int i = 0; i < n; i++) values[i] = a[i][i];
    for (int i = 1; i < n; i++) /* sorted by insertion */
        for (int j = i; j > 0 && values[j] < values[j - 1]; j--) {
            const double value = values[j];
            values[j] = values[j - 1], values[j - 1] = value;
            for (int k = 0; k < n; k++) {
                const double x = vectors[j][k];
                vectors[j][k] = vectors[j - 1][k], vectors[j - 1][k] = x;
            }
        }
}

void seen_begin(seen *s, const double *values, int64_t carried, double noise, const constants *of) {
    s->of = *of, s->noise = noise;
    s->carried = (int)carried, s->rows = s->products = s->rank = 0;
    for (int i = 0; i < s->carried; i++) {
        s->values[i] = values[i];
        s->multiplied[0][i] = i == s->carried - 1;
    }
}

/* An orthonormal basis of the rows but for noise, and all that is known in it. */
static void base(seen *s) {
    const int n = s->rows;
    double lengths[MOST], squares[MOST];
    matrix scaled, vectors;
    for (int i = 0; i < n; i++) {
        lengths[i] = sqrt(s->gram[i][i]);
        if (lengths[i] == 0) lengths[i] = 1;
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) scaled[i][j] = s->gram[i][j] / lengths[j] / lengths[i];
    eigen(scaled, n, squares, vectors);
    s->rank = 0;
    for (int i = 0; i < n; i++) {
        if (!(squares[i] > s->noise * squares[n - 1])) continue;
        const int r = s->rank++;
        const double root = sqrt(squares[i]);
        double places[MOST];
        for (int j = 0; j < n; j++) {
            s->weights[r][j] = vectors[i][j] / root / lengths[j];
            places[j] = vectors[i][j] * root * lengths[j];
        }
        for (int j = 0; j < s->carried; j++) s->held[j][r] = places[j];
        for (int m = 0; m < s->products; m++) {
            s->directions[m][r] = dot(s->multiplied[m], places, s->carried + m);
            s->images[m][r] = places[s->carried + m];
        }
    }
}

/* The largest Ritz value on the multiplied directions. */
static void ritz(seen *s) {
    const int m = s->products;
    double values[MOST];
    matrix projected, vectors;
    for (int i = 0; i < m; i++)
        for (int j = 0; j <= i; j++)
            projected[i][j] = projected[j][i] = (dot(s->directions[i], s->images[j], s->rank) +
                                                 dot(s->directions[j], s->images[i], s->rank)) /
                                                2;
    s->first = projected[0][0];
    eigen(projected, m, values, vectors);
    s->top = values[m - 1];
    for (int i = 0; i < m; i++) s->mixture[i] = vectors[m - 1][i];
}

/* By what the carried values are taken to have grown: as the top one has; where it has shrunk, half of that (of its
 * logarithm), since another may have overtaken it, whose value has not. */
static double growth(const seen *s) {
    const double before = s->values[s->carried - 1];
    if (!(s->first * before > 0)) return 1;
    double grown = s->first / before;
    grown = grown < 1 / s->of.change ? 1 / s->of.change : grown > s->of.change ? s->of.change : grown;
    return grown > 1 ? grown : sqrt(grown);
}

/* The matrix as one would expect it without this step's products, but for their size, with (a share of) all that
 * touches a multiplied direction replaced by what was found. */
static void completed(const seen *s, double unseen, double swing, double limit, double share, matrix to) {
    const int n = s->rank;
    const double rest = s->top - (1 - unseen) * fabs(s->top);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) to[i][j] = i == j ? rest : 0;
    for (int k = 0; k < s->carried; k++) {
        const double value = s->values[k] * swing, more = (value < limit ? value : limit) - rest;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) to[i][j] += s->held[k][i] * more * s->held[k][j];
    }
    matrix wrong, half;
    for (int m = 0; m < s->products; m++)
        for (int i = 0; i < n; i++) wrong[m][i] = s->images[m][i] - dot(to[i], s->directions[m], n);
    for (int m = 0; m < s->products; m++)
        for (int i = 0; i < n; i++) {
            half[m][i] = wrong[m][i];
            for (int l = 0; l < s->products; l++)
                half[m][i] -= s->directions[l][i] * dot(s->directions[l], wrong[m], n) / 2;
        }
    for (int m = 0; m < s->products; m++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                to[i][j] += share * (half[m][i] * s->directions[m][j] + half[m][j] * s->directions[m][i]);
}

/* Weights of the rows for a vector of the basis, with a sign that does not depend on the eigen-solver. */
static void weigh(const seen *s, const double *vector, double *to) {
    double largest = 0;
    for (int j = 0; j < s->rows; j++) {
        to[j] = 0;
        for (int r = 0; r < s->rank; r++) to[j] += vector[r] * s->weights[r][j];
        if (fabs(to[j]) > fabs(largest)) largest = to[j];
    }
    for (int j = 0; j < s->rows && largest < 0; j++) to[j] = -to[j];
}

/* The direction to multiply next; 0 if all of the basis has been multiplied. */
static int next(seen *s, double *to) {
    double values[MOST];
    matrix exact, vectors;
    if (s->products >= s->rank) return 0;
    completed(s, s->of.unseen, s->of.optimism * growth(s), INFINITY, 1, exact);
    eigen(exact, s->rank, values, vectors);
    for (int k = s->rank - 1; k >= 0; k--) {
        double outside[MOST], along[MOST];
        for (int m = 0; m < s->products; m++) along[m] = dot(s->directions[m], vectors[k], s->rank);
        for (int i = 0; i < s->rank; i++) {
            outside[i] = vectors[k][i];
            for (int m = 0; m < s->products; m++) outside[i] -= s->directions[m][i] * along[m];
        }
        const double length = sqrt(dot(outside, outside, s->rank));
        if (!(length > s->of.known)) continue;
        for (int i = 0; i < s->rank; i++) outside[i] /= length;
        weigh(s, outside, to);
        return 1;
    }
    return 0;
}

/* Enter the products [rows, fresh] of all rows with the new ones, the last of which is a product with the matrix.
 * Return 1 with the next direction's weights [rows] in `to`, 0 if none is wanted or left, -1 if not all is finite. */
int64_t seen_add(seen *s, const double *products, int64_t rows, int64_t fresh, int64_t more, double *to) {
    const int before = (int)(rows - fresh);
    for (int64_t i = 0; i < rows * fresh; i++)
        if (!isfinite(products[i])) return -1;
    for (int i = 0; i < rows; i++)
        for (int k = 0; k < fresh; k++) s->gram[i][before + k] = s->gram[before + k][i] = products[i * fresh + k];
    s->rows = (int)rows, s->products++;
    base(s);
    ritz(s);
    if (!more || !next(s, to)) return 0;
    for (int j = 0; j < rows; j++) s->multiplied[s->products][j] = to[j];
    return 1;
}

/* How far a Ritz pair, a mixture of the first m multiplied directions, is from an eigenpair. */
static double residual(const seen *s, double top, const double *mixture, int m) {
    double sum = 0;
    for (int i = 0; i < s->rank; i++) {
        double off = 0;
        for (int l = 0; l < m; l++) off += (s->images[l][i] - top * s->directions[l][i]) * mixture[l];
        sum += off * off;
    }
    return sqrt(sum);
}

static double largest(const seen *s, double unseen, double swing, double limit) {
    double values[MOST];
    matrix exact, vectors;
    completed(s, unseen, swing * growth(s), limit, 1, exact);
    eigen(exact, s->rank, values, vectors);
    return values[s->rank - 1];
}

/* The value and its residual, to [2]; return whether it is to be trusted. */
int64_t seen_value(const seen *s, double *to) {
    const double one = 1, value = largest(s, s->of.unseen, s->of.optimism, s->top);
    const double far = residual(s, s->top, s->mixture, s->products), size = fabs(value);
    to[0] = value, to[1] = far;
    if (far > s->of.near * size || residual(s, s->first, &one, 1) > s->of.still * size) return 0;
    /* By what the top vector's product has changed, those of the other carried ones may have changed too. */
    const double swing = 1 + 2 * far / (size > 2.2250738585072014e-308 ? size : 2.2250738585072014e-308);
    const double low = largest(s, s->of.low, s->of.optimism, s->top);
    return largest(s, s->of.high, swing, INFINITY) - low <= s->of.trusted * size;
}

/* The topmost eigenvalues of the mean matrix, and weights [K, rows] of its eigenvectors; return how many. */
int64_t seen_averaged(const seen *s, int64_t most, double *values, double *weights) {
    const int keep = most < s->rank ? (int)most : s->rank;
    double all[MOST];
    matrix exact, vectors;
    completed(s, s->of.unseen, 1, INFINITY, s->of.fresh, exact);
    eigen(exact, s->rank, all, vectors);
    for (int k = 0; k < keep; k++) {
        values[k] = all[s->rank - keep + k];
        weigh(s, vectors[s->rank - keep + k], weights + k * s->rows);
    }
    return keep;
}

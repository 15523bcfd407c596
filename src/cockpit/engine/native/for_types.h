/* Includes the file BODY once for each type `real`, whose functions are NAME(function). */
#define JOIN(a, b) a##_##b
#define EXPAND(a, b) JOIN(a, b)
#define NAME(a) EXPAND(a, real)

#define real float
#include BODY
#undef real
#define real double
#include BODY

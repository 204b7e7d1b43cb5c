// exp, log, sin and cos of our own: the same bits wherever a tier runs, whatever the C library.

// e^x to about one unit in the last place for x in [-87.3, 88.0]; below, 0; above, 2^127; NaN for
// NaN. Range reduction to |r| <= ln(2) / 2, then a degree-6 polynomial (Cephes expf coefficients).
FARTHING_INLINE Float exp(Float x) {
  // The second operand is the one that survives as a NaN.
  Float clamped = min(set1(88.02969f), max(set1(-87.33654f), x));
  Float n = round(mul(clamped, set1(1.44269504f)));
  Float r = fma(n, set1(-0.693359375f), clamped);
  r = fma(n, set1(2.12194440e-4f), r);
  Float p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(mul(r, r), p, add(r, set1(1.0f)));
  return where_less(x, set1(-87.33654f), zero(), mul(p, exp2_integral(n)));
}

constexpr float kLog2E = 1.44269504f;

// 2^x for finite x <= 0 to about one unit in the last place, 0 below -126.5; NaN for NaN. x is
// split into an integer and the rest within [-1/2, 1/2], for which there is a polynomial: least
// largest relative error among those of degree 5 that are exactly 1 at 0.
FARTHING_INLINE Float exp2_below(Float x) {
  Float n = round(x);
  Float r = sub(x, n);
  Float p = set1(1.326472731e-3f);
  p = fma(p, r, set1(9.671512991e-3f));
  p = fma(p, r, set1(5.550733581e-2f));
  p = fma(p, r, set1(2.402224243e-1f));
  p = fma(p, r, set1(6.931470037e-1f));
  p = fma(p, r, set1(1.0f));
  return times_exp2(p, n);
}

// sin and cos of x (float64) to about 1e-15 for |x| up to 1.6e6, where the first part's products
// are still exact; beyond, the error grows with x. Cody-Waite reduction by pi / 2 in three parts,
// then Taylor polynomials on [-pi / 4, pi / 4].
FARTHING_INLINE void sin_cos(double x, double* sine, double* cosine) {
  double q = x * 0.63661977236758134308;
  double n = static_cast<double>(static_cast<int64_t>(q + (q < 0 ? -0.5 : 0.5)));
  double r = x - n * 1.57079632673412561417e+00;
  r -= n * 6.07710050630396597660e-11;
  r -= n * 2.02226624879595063154e-21;
  double z = r * r;
  double s = -7.6471637318198164759e-13;
  s = s * z + 1.6059043836821614599e-10;
  s = s * z - 2.5052108385441718775e-08;
  s = s * z + 2.7557319223985890653e-06;
  s = s * z - 1.9841269841269841270e-04;
  s = s * z + 8.3333333333333333333e-03;
  s = s * z - 1.6666666666666666667e-01;
  s = r + r * z * s;
  double c = -1.1470745597729724714e-11;
  c = c * z + 2.0876756987868098979e-09;
  c = c * z - 2.7557319223985890653e-07;
  c = c * z + 2.4801587301587301587e-05;
  c = c * z - 1.3888888888888888889e-03;
  c = c * z + 4.1666666666666666667e-02;
  c = 1.0 - 0.5 * z + z * z * c;
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      *sine = s, *cosine = c;
      break;
    case 1:
      *sine = c, *cosine = -s;
      break;
    case 2:
      *sine = -s, *cosine = -c;
      break;
    default:
      *sine = -c, *cosine = s;
      break;
  }
}

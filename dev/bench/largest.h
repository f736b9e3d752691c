// The largest number for which something still holds, as a micro-batch that fits.
#pragma once

// Returns the last of 1, 2, … before the first that does not pass; 0 if 1 does not.
template <class Passes>
int largest_passing(Passes&& passes) {
  int known = 0, step = 1;
  while (passes(known + step)) known += step, step *= 2;
  for (; step; step /= 2)
    if (passes(known + step)) known += step;
  return known;
}

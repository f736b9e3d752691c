// How long ranks wait for each other before the run ends, in seconds.
#pragma once

struct Timeouts {
  double comm = 600;   // of a rank that lives, and does not come to a collective
  double silent = 60;  // of one whose heartbeat is not heard; 0: no time, it is treated as one that lives
};

// Ends the program if this processor lacks instructions that the compiler was allowed to use (-march), before any of
// them is executed. Without this a program that was built on another machine ends by SIGILL.
#pragma once

// main() calls this. The check itself runs before main() and before all global objects; this call makes the linker
// take it into the program. Prints what is missing and what to build with on standard error, and exits with code 1.
void require_processor();

"""What each kind of processor adds to the compiler: layout, estimates, machine code, calls."""

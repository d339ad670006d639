"""Reader of compiled programs: the text in which XLA prints a scheduled module, for TPU, GPU, CPU.

    text          parse it: computations, instructions in schedule order
    shape         shapes of arrays, with their tiles and memory spaces
    loops         how often each computation runs
    groups        which devices a collective joins, and which mesh axes those are
    forms         where each collective starts and ends: sync, async, fused, offloaded
    reductions    which all-reduces are reduce-scatters in effect
    collectives   every collective once, with its axes, bytes and run count
    traffic       HBM bytes of each instruction
    costs         FLOPs of each instruction
    scopes        which planned operation an instruction belongs to, and in which pass
    buffers       which results share memory, and the live range of each buffer
    loop_carry    what loops write into the arrays that they carry
    memory        live ranges over the schedule: the peak, and what it consists of

Functions take and return values; standard library and NumPy only.
"""

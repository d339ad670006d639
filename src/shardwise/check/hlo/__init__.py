"""Reader of compiled programs: the text in which XLA prints a scheduled module, for TPU, GPU, CPU.

    text          parse it: computations, instructions in schedule order, shapes and their tiles
    loops         how often each computation runs
    groups        which devices a collective joins, and which mesh axes those are
    collectives   every collective once, in whatever form the compiler has put it
    costs         FLOPs and HBM bytes of each instruction
    scopes        which planned operation an instruction belongs to, and in which pass
    memory        live ranges over the schedule: the peak, and what it is made of

Values in, values out; standard library and NumPy only.
"""

"""Steps that take time; one rank takes more of it than the others."""

import itertools
import math
import os
import random
import time

rank = int(os.environ["RANK_ID"])
began = time.monotonic()
random.seed(rank)
for step in itertools.count(1):
    seconds = random.uniform(0.98, 1.02) * (0.16 if rank == 2 else 0.1)
    time.sleep(seconds)
    if time.monotonic() - began > 14:
        break
    loss = 2.3 * math.exp(-step / 60) + 0.3 + random.gauss(0, 0.05)
    print(f"Epoch: [1/2], batch: [{step}/200], loss: {loss:.6f}, lr: 0.001, time: {seconds:.6f}s", flush=True)

"""Write down how the network is cut over the ranks of this job: what `mslaunch ckpt reshard --to` needs."""

from __future__ import annotations

import os
from pathlib import Path

from mslaunch.runtime import load_config, save_strategy

from network import CUTS, Network


def main() -> None:
    cfg = load_config(Path(__file__).with_name("config.yaml"))
    path = Path(os.environ.get("MSLAUNCH_SUBMIT_DIR", ""), cfg.strategy)
    save_strategy(str(path), Network(cfg.device_num), CUTS)


if __name__ == "__main__":
    main()

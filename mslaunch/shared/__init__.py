"""What launcher, agents and ranks share. It travels to every host: Python 3.9, standard library only."""

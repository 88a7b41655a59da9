"""Models that need no hub: toy.py makes one that reasons a little, smollm2.py gets a real one."""

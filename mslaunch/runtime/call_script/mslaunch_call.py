"""The script of a job that mslaunch.launch() starts: calls the function that lies in the run's folder.

It is alone in its folder, since a script's folder is the first place that its imports are looked for.
"""

import mslaunch
from mslaunch.runtime.call import main

mslaunch.add_installed_modules()  # modules of the function's author may import them
main()

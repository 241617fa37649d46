"""The built-in methods: mslaunch starts the ranks itself (dynamic), or a rendered script does."""

from __future__ import annotations

from mslaunch.hosts import LOCAL, Host
from mslaunch.plan.methods.method import Method, MethodPlan, PlacedJob
from mslaunch.plan.methods.rank_processes import job_env, ranks_file, scheduler_process, worker_processes
from mslaunch.plan.model import File, Process
from mslaunch.shared import layout


class Dynamic(Method):
    """The default: mslaunch starts MindSpore's scheduler and every rank itself."""

    name = "dynamic"
    needs_scheduler = True

    def plan(self, job: PlacedJob) -> MethodPlan:
        return MethodPlan(job_env(job), (scheduler_process(job, "on-import"), *worker_processes(job)))


class Scripted(Method):
    """Renders one script per host from a template; a subclass may start fewer, and write further files."""

    by_script = True
    template: str

    def script_hosts(self, job: PlacedJob) -> tuple[Host, ...]:
        """Return the hosts on which a script is started."""
        return job.hosts

    def extra_files(self, job: PlacedJob) -> tuple[File, ...]:
        """Return the files that the script reads."""
        del job
        return ()

    def plan(self, job: PlacedJob) -> MethodPlan:
        from mslaunch.plan.render import render_script

        env = job_env(job)
        hosts = self.script_hosts(job)
        processes: list[Process] = []
        files: list[File] = []
        for node, host in enumerate(hosts):
            name = self.template if len(hosts) == 1 else f"{node}_{self.template}"
            path = layout.script(name)
            files.append(File(path, render_script(self.template, job, env, node), 0o700))
            log = job.path(layout.script(name.removesuffix(".sh") + ".log"))
            argv = ("bash", job.path(path))
            processes.append(Process("script", None, host.name, None, argv, {}, job.facts.run_dir, log))
        if job.has_scheduler:
            processes.append(scheduler_process(job, "by-script"))
        workers = worker_processes(job, "by-script")
        files += [ranks_file(workers, job.facts.run_dir), *self.extra_files(job)]
        return MethodPlan(env, (*processes, *workers), tuple(files))


class Msrun(Scripted):
    """One msrun per host."""

    name = "msrun"
    template = "msrun.sh"
    needs_mindspore = True
    first_mindspore = (2, 3)
    needs_scheduler = True


class Mpirun(Scripted):
    """One mpirun on the first host, which reaches the others itself."""

    name = "mpirun"
    template = "mpirun.sh"
    needs_program = "mpirun"
    program_advice = "Install Open MPI 4 (Debian: apt-get install openmpi-bin)."
    reaches_hosts = True

    def script_hosts(self, job: PlacedJob) -> tuple[Host, ...]:
        return job.hosts[:1]

    def extra_files(self, job: PlacedJob) -> tuple[File, ...]:
        lines = []
        for host in job.hosts:
            # Names, since Slurm and ~/.ssh/config know more about them than an address says.
            name = host.address if host.name == LOCAL else host.name
            lines.append(f"{name} slots={len(host.devices)}\n")
        return (File(layout.HOSTFILE, "".join(lines)),)


class RankTableMethod(Scripted):
    """The legacy Ascend start: one process per device, with RANK_TABLE_FILE."""

    name = "rank-table"
    template = "rank_table.sh"
    needs_rank_table = True

"""A segment as a job of FLARE: a folder of small JSON files, and no code."""

from __future__ import annotations

from pathlib import Path

from pacpfl import files

CONTROLLER = "pacpfl.sites.controller.SitesController"
EXECUTOR = "pacpfl.sites.executor.SiteExecutor"

# Measured on two cores: 2.2 s a round with FLARE's defaults, 0.12 to 0.24 s with these. Polls below
# 0.03 s starve a small machine.
POLL_SECONDS = 0.03
WHOLE_ARRAYS = {"np_download_chunk_size": 0}
# For a site to find the server's process of the job, which loads JAX first; FLARE gives up after 60.
READY_SECONDS = 300.0


def write_job(folder: Path, run_folder: Path, run: str, segment: int, sites: list[str]) -> Path:
    """Write the job of a segment for these sites; return the folder to submit.

    Its whole path: FLARE looks for any other below the administrator's kit.
    """
    name = f"pacpfl-{run[:12]}-{segment}"
    job = folder.resolve() / name
    config = job / "app" / "config"
    config.mkdir(parents=True, exist_ok=True)
    meta = {
        "name": name,
        "resource_spec": {},
        "deploy_map": {"app": ["server", *sites]},
        "min_clients": 1,
        "mandatory_clients": [],
    }
    controller = {"folder": str(run_folder.resolve()), "segment": segment}
    common = {
        "format_version": 2,
        **WHOLE_ARRAYS,
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
    }
    server = common | {
        "server": {"task_request_interval": POLL_SECONDS},
        "workflows": [{"id": "segment", "path": CONTROLLER, "args": controller}],
    }
    client = common | {
        "default_task_fetch_interval": POLL_SECONDS,
        "max_runner_sync_timeout": READY_SECONDS,
        "executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {}}}],
    }
    files.write_json(job / "meta.json", meta)
    files.write_json(config / "config_fed_server.json", server)
    files.write_json(config / "config_fed_client.json", client)
    return job

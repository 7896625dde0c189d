// A Kubernetes API server with controllers for a test.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

/** Milliseconds until it is ready, on a busy machine. */
const START = 60_000;
/** Milliseconds for the end of requests, then of the process. */
const STOP = 60_000;

/** A process of `ferrokube all-in-one` with its state in memory, and a port and directory of its own. */
export class ControlPlane {
  #process;
  #directory;

  /** URL of the API server. */
  url = "";

  constructor(process, directory) {
    this.#process = process;
    this.#directory = directory;
  }

  /**
   * Starts one; resolves when it serves.
   *
   * @param {string[]} flags of `ferrokube all-in-one`
   * @param {{binary?: string, start?: number}} options `binary`: by default `$FERROKUBE`, else the `ferrokube` in
   *   `$PATH`; `start`: milliseconds after which it fails
   */
  static async start(flags = [], { binary = process.env.FERROKUBE || "ferrokube", start = START } = {}) {
    const directory = mkdtempSync(join(tmpdir(), "ferrokube-"));
    const all = [`--data-dir=${join(directory, "data")}`, "--storage=memory", "--secure-port=0", ...flags];
    const log = openSync(join(directory, "log"), "w");
    const child = spawn(binary, ["all-in-one", ...all], { stdio: ["ignore", "pipe", log] });
    closeSync(log);
    const plane = new ControlPlane(child, directory);
    const failed = new Promise((_, reject) => {
      child.once("error", (error) => reject(new Error(`cannot start ${binary}: ${error.message}`)));
      child.once("exit", () => reject(new Error(`${binary}: not ready: ${plane.log}`)));
    });
    const late = setTimeout(() => child.kill("SIGKILL"), start);
    // A later end is seen by requests.
    failed.catch(() => {});
    try {
      const lines = createInterface({ input: child.stdout });
      // "ready in 12 ms: URL kubeconfig FILE"
      const [line] = await Promise.race([once(lines, "line"), failed]);
      plane.url = line.slice(line.indexOf(": ") + 2).split(" kubeconfig ")[0];
      return plane;
    } catch (error) {
      await plane.stop();
      throw error;
    } finally {
      clearTimeout(late);
    }
  }

  /** Path of the administrator's credentials, with embedded certificates. */
  get kubeconfig() {
    return join(this.#directory, "data", "admin.kubeconfig");
  }

  /** What the process has logged. */
  get log() {
    return readFileSync(join(this.#directory, "log"), "utf8");
  }

  /** Ends the process and removes its directory; may be called twice. */
  async stop() {
    const child = this.#process;
    if (child.pid !== undefined && child.exitCode === null && child.signalCode === null) {
      const exited = once(child, "exit");
      child.kill("SIGTERM");
      const timer = setTimeout(() => child.kill("SIGKILL"), STOP);
      await exited;
      clearTimeout(timer);
    }
    rmSync(this.#directory, { recursive: true, force: true });
  }
}

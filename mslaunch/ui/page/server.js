// What the page asks its server for.

export class Failure extends Error {}

export class Server {
  constructor() {
    this.tags = new Map();
  }

  async get(path, query = {}) {
    return (await this.ask(path, query)).json();
  }

  // The answer, or null where it is what it was at the last time.
  async getChanged(path, query = {}) {
    const key = `${path}?${new URLSearchParams(query)}`;
    const tag = this.tags.get(key);
    const answer = await this.ask(path, query, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.status === 304) return null;
    this.tags.clear();
    if (answer.headers.get("ETag")) this.tags.set(key, answer.headers.get("ETag"));
    return answer.json();
  }

  async post(path, query) {
    return (await this.ask(path, query, { method: "POST", headers: { "X-Mslaunch": "1" } })).json();
  }

  async ask(path, query, options = {}) {
    const asked = `api/${path}?${new URLSearchParams(query)}`;
    let answer;
    try {
      answer = await fetch(asked, { credentials: "same-origin", ...options });
    } catch {
      throw new Failure("The server does not answer. Start `mslaunch ui` again, and open the address that it prints.");
    }
    if (answer.ok || answer.status === 304) return answer;
    const told = await answer.json().catch(() => ({}));
    throw new Failure(told.error ?? `The server answered ${answer.status}.`);
  }
}

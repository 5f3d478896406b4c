// ioredis: one check per call over the Redis protocol. Needs the package `ioredis`.
//
//     const limits = new Limits('redis://127.0.0.1:6380');
//     const { allowed, retryAfterMs } = await limits.check('api', { user: 'alice' });
//
// DEADLINE_MS covers the whole check. If no decision arrives in time, FAIL_OPEN determines whether requests pass.
'use strict';
const Redis = require('ioredis');

const DEADLINE_MS = 250;
const FAIL_OPEN = true;

class Limits {
  constructor(url) {
    // `commandTimeout` includes the time to connect.
    const options = { connectTimeout: DEADLINE_MS, commandTimeout: DEADLINE_MS, maxRetriesPerRequest: 0 };
    this.client = new Redis(url, options);
    // Checks handle connection errors; without a listener, ioredis would also print them.
    this.client.on('error', () => {});
  }

  /** Resolves to whether the request may pass, and the milliseconds to wait if not (-1: waiting does not help). */
  async check(domain, attributes, cost = '-') {
    try {
      const reply = await this.client.call('TG.CHECK', domain, cost, ...Object.entries(attributes).flat());
      const fields = new Map();
      for (let n = 0; n < reply.length; n += 2) fields.set(reply[n], reply[n + 1]);
      return { allowed: fields.get('allowed') === 1, retryAfterMs: fields.get('retry_after_ms') ?? 0 };
    } catch {
      return { allowed: FAIL_OPEN, retryAfterMs: 0 };
    }
  }

  /** Returns a pipeline, for several checks in one round trip. The pipeline is not a transaction; Tollgate has none. */
  pipeline() {
    return this.client.pipeline();
  }

  close() {
    this.client.disconnect();
  }
}

module.exports = { Limits };

// Express middleware: one check per request. Standard library only.
//
//     app.use(tollgate({ url: 'http://127.0.0.1:8080', domain: 'api' }));
//
// DEADLINE_MS covers the whole check. If no decision arrives in time, requests pass (FAIL_OPEN) or get status 503.
'use strict';
const http = require('node:http');
const https = require('node:https');

const DEADLINE_MS = 250;
const FAIL_OPEN = true;
const PASSED_ON = ['retry-after', 'ratelimit', 'ratelimit-policy'];

/** Resolves to 200 or the status of the refusal, and the headers for the client. */
function check({ url, domain, token }, attributes) {
  const failed = { status: FAIL_OPEN ? 200 : 503, headers: {} };
  return new Promise((resolve) => {
    const body = JSON.stringify({ domain, attributes });
    const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) };
    if (token) headers.authorization = `Bearer ${token}`;
    const client = url.startsWith('https:') ? https : http;
    // One deadline for the whole check, from connecting to the last byte.
    const signal = AbortSignal.timeout(DEADLINE_MS);
    const request = client.request(new URL('/v1/check', url), { method: 'POST', headers, signal }, (response) => {
      response.resume();
      response.on('end', () => {
        // A response of any other type is not a decision: an invalid request or token, or an overloaded server.
        if (response.headers['content-type'] !== 'application/json') return resolve(failed);
        const passedOn = PASSED_ON.filter((name) => name in response.headers);
        const entries = passedOn.map((name) => [name, response.headers[name]]);
        return resolve({ status: response.statusCode, headers: Object.fromEntries(entries) });
      });
    });
    request.on('error', () => resolve(failed));
    request.on('close', () => resolve(failed));
    request.end(body);
  });
}

function tollgate(options) {
  const attributesOf =
    options.attributes ?? ((req) => ({ client_ip: req.ip, path: req.path, method: req.method }));
  const config = { token: process.env.TOLLGATE_TOKEN, ...options };
  return async (req, res, next) => {
    const { status, headers } = await check(config, attributesOf(req));
    for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
    if (status === 200) return next();
    res.statusCode = status;
    return res.end();
  };
}

module.exports = { tollgate, check };

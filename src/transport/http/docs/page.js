// The page of operations: reads the server's own documents, lists what they hold, sends requests.
"use strict";

const PLANES = ["worker-plane", "control-plane"];
const METHODS = ["get", "post", "put", "delete", "patch"];
// Schemas may hold themselves; samples and listings stop here.
const MAX_DEPTH = 5;

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function resolved(whole, value) {
  const seen = new Set();
  let found = value;
  while (found && found.$ref && !seen.has(found.$ref)) {
    seen.add(found.$ref);
    found = found.$ref.slice(2).split("/").reduce((at, key) => at?.[key], whole);
  }
  return found ?? {};
}

function referenced(value) {
  return value?.$ref ? value.$ref.split("/").pop() : null;
}

// The parts of a schema that its alternatives and components add up to.
function flat(whole, schema, depth = 0) {
  const own = resolved(whole, schema);
  if (own === true || depth > MAX_DEPTH) return { properties: {}, required: [] };
  const sum = { type: own.type, properties: { ...own.properties }, required: [...(own.required ?? [])] };
  for (const part of own.allOf ?? []) {
    const inner = flat(whole, part, depth + 1);
    Object.assign(sum.properties, inner.properties);
    sum.required.push(...inner.required);
  }
  return sum;
}

function kind(whole, schema) {
  const name = referenced(schema);
  if (name) return name;
  if (schema === true || !schema) return "any";
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  const several = schema.oneOf ?? schema.anyOf;
  if (several) return several.map((one) => kind(whole, one)).join(" | ");
  if (schema.items !== undefined) return `list of ${kind(whole, schema.items)}`;
  return [schema.type ?? "any"].flat().join(" | ");
}

function sample(whole, schema, depth = 0) {
  const own = resolved(whole, schema);
  if (own.const !== undefined) return own.const;
  if (own.enum) return own.enum[0];
  if (own.default !== undefined) return own.default;
  const first = (own.oneOf ?? own.anyOf)?.find((one) => resolved(whole, one).type !== "null");
  if (first && !own.properties) return sample(whole, first, depth + 1);
  const type = [own.type].flat().find((one) => one !== "null");
  if (type === "string") return "";
  if (type === "integer" || type === "number") return own.minimum ?? 0;
  if (type === "boolean") return false;
  if (type === "array") return [];
  const { properties, required } = flat(whole, own);
  const wanted = required.length ? required : [];
  if (depth > MAX_DEPTH) return {};
  return Object.fromEntries(wanted.map((key) => [key, sample(whole, properties[key] ?? {}, depth + 1)]));
}

function listing(whole, schema) {
  const own = resolved(whole, schema);
  const several = own.oneOf ?? own.anyOf;
  if (several && !own.properties) {
    return element("div", {}, ...several.map((one) => {
      const inner = element("details", {}, element("summary", {}, kind(whole, one)));
      inner.append(listing(whole, one));
      return inner;
    }));
  }
  const { properties, required } = flat(whole, schema);
  const rows = Object.entries(properties).map(([name, property]) => element("tr", {},
    element("th", {}, required.includes(name) ? `${name} *` : name),
    element("td", {}, kind(whole, property)),
    element("td", {}, property?.description ?? property?.oneOf?.[0]?.description ?? resolved(whole, property).description ?? "")));
  return rows.length ? element("table", {}, ...rows) : element("p", {}, kind(whole, own));
}

// A request is made from this list; each input knows where its value belongs.
function inputs(whole, operation) {
  return (operation.parameters ?? []).map((parameter) => {
    const known = resolved(whole, parameter);
    const schema = resolved(whole, known.schema);
    const input = element("input", { "data-name": known.name, "data-in": known.in, autocomplete: "off" });
    const versions = schema.enum ?? (schema.const !== undefined ? [schema.const] : []);
    if (known.required && known.in === "header") input.value = versions[versions.length - 1] ?? "";
    return { known, input };
  });
}

function request(whole, path, operation, fields, body) {
  const server = operation.server.replace(/\/$/, "");
  let target = path;
  const query = new URLSearchParams();
  const headers = new Headers();
  for (const { known, input } of fields) {
    if (known.in === "path") target = target.replace(`{${known.name}}`, encodeURIComponent(input.value));
    if (input.value === "") continue;
    if (known.in === "query") query.set(known.name, input.value);
    if (known.in === "header") headers.set(known.name, input.value);
  }
  const token = document.getElementById("token").value;
  const namespace = document.getElementById("namespace").value;
  if (token) headers.set("Authorization", `Bearer ${token}`);
  if (namespace && !headers.has("X-Namespace")) headers.set("X-Namespace", namespace);
  const options = { method: operation.method.toUpperCase(), headers, credentials: "omit", cache: "no-store" };
  if (body) {
    headers.set("Content-Type", "application/json");
    options.body = body.value;
  }
  const asked = query.size ? `?${query}` : "";
  // Relative to the page, so that it works behind a proxy that adds a path in front.
  return [`.${server}${target}${asked}`, options];
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

async function send(button, output, target, options) {
  button.disabled = true;
  output.replaceChildren("…");
  const began = performance.now();
  try {
    const answer = await fetch(target, options);
    const text = await answer.text();
    const took = Math.round(performance.now() - began);
    const headers = [...answer.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
    output.replaceChildren(
      element("p", { class: "status", "data-status": answer.status }, `${answer.status} after ${took} ms`),
      element("pre", {}, headers), element("pre", { class: "body" }, pretty(text)));
  } catch (error) {
    output.replaceChildren(element("p", { class: "status" }, `There was no answer: ${error.message}`));
  } finally {
    button.disabled = false;
  }
}

function trial(whole, path, operation) {
  const fields = inputs(whole, operation);
  const schema = operation.requestBody?.content?.["application/json"]?.schema;
  const body = schema && element("textarea", { spellcheck: "false", "aria-label": "Body" });
  if (body) body.value = JSON.stringify(sample(whole, schema), null, 2);
  const button = element("button", { type: "button", class: "send" }, "Send");
  const output = element("div", { class: "answer", "aria-live": "polite" });
  button.addEventListener("click", () => send(button, output, ...request(whole, path, operation, fields, body)));
  const rows = fields.map(({ known, input }) => element("tr", {},
    element("th", {}, known.required ? `${known.name} *` : known.name),
    element("td", {}, input), element("td", {}, `${known.in}. ${known.description ?? ""}`)));
  const parts = [element("h3", {}, "Try it"), element("table", {}, ...rows)];
  if (body) parts.push(element("h3", {}, "Body"), body, element("div", {}, listing(whole, schema)));
  return [...parts, element("div", {}, button), output];
}

function answers(whole, operation) {
  return Object.entries(operation.responses ?? {}).map(([status, response]) => {
    const known = resolved(whole, response);
    const shown = element("details", {}, element("summary", {}, `${status} ${known.description ?? ""}`));
    const headers = Object.keys(known.headers ?? {}).join(", ");
    if (headers) shown.append(element("p", {}, `Headers: ${headers}`));
    for (const [media, { schema }] of Object.entries(known.content ?? {})) {
      shown.append(element("p", {}, media));
      if (schema) shown.append(listing(whole, schema));
    }
    return shown;
  });
}

function entry(whole, path, operation) {
  const shown = element("details", { class: "operation", id: operation.operationId, "data-operation": operation.operationId },
    element("summary", {}, element("span", { class: "method" }, operation.method.toUpperCase()),
      element("span", { class: "path" }, path), element("span", { class: "about" }, operation.summary ?? "")));
  // Filled when it is opened: there are thousands of rows in all.
  shown.addEventListener("toggle", () => {
    if (!shown.open || shown.dataset.filled) return;
    shown.dataset.filled = "yes";
    if (operation.description) shown.append(element("p", {}, operation.description));
    shown.append(...trial(whole, path, operation), element("h3", {}, "Answers"), ...answers(whole, operation));
  });
  return shown;
}

function list(whole) {
  const base = whole.servers?.[0]?.url ?? "/";
  const groups = new Map();
  for (const [path, item] of Object.entries(whole.paths)) {
    for (const method of METHODS.filter((one) => item[one])) {
      const operation = { ...item[method], method, server: item.servers?.[0]?.url ?? base };
      const tag = operation.tags?.[0] ?? "";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(entry(whole, path, operation));
    }
  }
  const section = element("section", {}, element("h2", {}, `${whole.info.title} ${whole.info.version}`),
    element("p", {}, whole.info.description ?? ""));
  for (const [tag, entries] of groups) section.append(element("h3", {}, tag), ...entries);
  return section;
}

function find(text) {
  const wanted = text.toLowerCase();
  for (const shown of document.querySelectorAll(".operation")) {
    const all = `${shown.dataset.operation} ${shown.querySelector("summary").textContent}`.toLowerCase();
    shown.hidden = !all.includes(wanted);
  }
}

async function start() {
  const main = document.getElementById("operations");
  const links = document.getElementById("documents");
  try {
    for (const plane of PLANES) {
      const answer = await fetch(`api/openapi/${plane}.json`, { credentials: "omit" });
      if (!answer.ok) throw new Error(`${plane}: ${answer.status}`);
      main.append(list(await answer.json()));
      for (const format of ["json", "yaml"]) {
        links.append(element("a", { href: `api/openapi/${plane}.${format}` }, `${plane}.${format}`), " ");
      }
    }
    document.getElementById("find").addEventListener("input", (event) => find(event.target.value));
    const named = location.hash && document.getElementById(location.hash.slice(1));
    if (named) {
      named.open = true;
      named.scrollIntoView();
    }
  } catch (error) {
    main.append(element("p", {}, `The documents could not be read: ${error.message}`));
  } finally {
    main.setAttribute("aria-busy", "false");
  }
}

start();

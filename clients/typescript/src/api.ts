/** Calls whose parameters and answers have the types of an OpenAPI document. */

import type { Call, Http, Query } from "./http.js";

/** The methods of a path. */
export type Method = "get" | "post" | "put" | "patch" | "delete";
type MethodsOf<Item> = {
  [M in Method]: Item extends Record<M, infer Op> ? ([Op] extends [undefined] ? never : M) : never;
}[Method];

type JsonOf<T> = T extends { content: { "application/json": infer Body } } ? Body : never;
type AnswerOf<Op> = Op extends { responses: infer R } ? JsonOf<R[keyof R & (200 | 201 | 202)]> : never;
type PathOf<Op> = Op extends { parameters: { path: infer P } } ? { path: P } : { path?: never };
type QueryOf<Op> = Op extends { parameters: { query?: infer Q } }
  ? [Q] extends [undefined]
    ? { query?: never }
    : undefined extends Q
      ? { query?: Loose<NonNullable<Q>> | undefined }
      : { query: Loose<Q> }
  : { query?: never };
type BodyOf<Op> = Op extends { requestBody: { content: { "application/json": infer Body } } }
  ? { body: Body }
  : Op extends { requestBody?: { content: { "application/json": infer Body } } }
    ? { body?: Body }
    : { body?: never };

/** Optional parameters may also be given as undefined. */
type Loose<T> = { [K in keyof T]: T[K] | (undefined extends T[K] ? undefined : never) };

/** What a call takes beside its method and path. */
export type Arguments<Op> = PathOf<Op> & QueryOf<Op> & BodyOf<Op> & CallOptions;

/** What every call takes. */
export interface CallOptions {
  /** Ends the call. */
  readonly signal?: AbortSignal | undefined;
  /** How long one attempt may take. */
  readonly timeoutMs?: number | undefined;
}

/** Typed calls of one service. */
export class Api<Paths> {
  readonly http: Http;

  constructor(http: Http) {
    this.http = http;
  }

  /** Makes a call. It is repeated after a failure only if it reads. */
  call<P extends keyof Paths & string, M extends MethodsOf<Paths[P]>>(
    method: M,
    path: P,
    args: Arguments<Paths[P][M & keyof Paths[P]]>,
  ): Promise<AnswerOf<Paths[P][M & keyof Paths[P]]>> {
    return this.http.json(callOf(method, path, args, undefined));
  }

  /** Makes a call that has no other effect if it is made twice, and repeats it after a failure. */
  callRepeatable<P extends keyof Paths & string, M extends MethodsOf<Paths[P]>>(
    method: M,
    path: P,
    args: Arguments<Paths[P][M & keyof Paths[P]]>,
  ): Promise<AnswerOf<Paths[P][M & keyof Paths[P]]>> {
    return this.http.json(callOf(method, path, args, true));
  }
}

interface AnyArguments extends CallOptions {
  readonly path?: Readonly<Record<string, string>>;
  readonly query?: Query;
  readonly body?: unknown;
}

function callOf(method: string, template: string, args: unknown, repeatable: boolean | undefined): Call {
  const { path, query, body, signal, timeoutMs } = args as AnyArguments;
  return {
    method: method.toUpperCase(),
    path: fillPath(template, path ?? {}),
    query,
    json: body,
    signal,
    timeoutMs,
    repeatable,
  };
}

/** A path with its parameters, encoded. */
export function fillPath(template: string, parameters: Readonly<Record<string, string>>): string {
  return template.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = parameters[name];
    if (value === undefined || value === "") throw new TypeError(`\`${name}\` of ${template} is missing`);
    return encodeSegment(value);
  });
}

/** A segment of a path. */
export function encodeSegment(value: string): string {
  // Every URL of `fetch` resolves them, encoded or not: the call would reach another path.
  if (value === "." || value === "..") throw new TypeError(`the id \`${value}\` cannot be sent by \`fetch\``);
  return encodeURIComponent(value);
}

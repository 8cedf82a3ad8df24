/** The orchestrator, as its operator sees it. */

import { Api, type CallOptions } from "./api.js";
import { Http, type HttpOptions } from "./http.js";
import { byOffset, type Pages } from "./pages.js";
import type {
  OrchestratorPaths,
  OrchestratorSchemas,
  Policy,
  ProductSummary,
  RegisteredProduct,
} from "./types.js";

export interface AdminOptions extends HttpOptions {
  /** The orchestrator's address. */
  readonly url: string;
  readonly adminKey: string;
}

const PAGE_SIZE = 100;

/** The products of a deployment. */
export class Admin {
  readonly api: Api<OrchestratorPaths>;

  constructor(options: AdminOptions) {
    const access = { url: options.url.replace(/\/+$/, ""), headers: { "x-admin-key": options.adminKey } };
    this.api = new Api(new Http({ current: () => access }, options));
  }

  /** Registers a product. Its key is shown only here; with a key of the caller's own the call can be repeated. */
  register(
    product: Omit<OrchestratorSchemas["RegisterProduct"], "policy"> & { readonly policy?: Policy },
    options: CallOptions = {},
  ): Promise<RegisteredProduct> {
    const body = { ...product, policy: wholePolicy(product.policy ?? {}) };
    const args = { body, ...options };
    return product.platform_api_key == null
      ? this.api.call("post", "/products/register", args)
      : this.api.callRepeatable("post", "/products/register", args);
  }

  /** Replaces the whole policy of a product. */
  replacePolicy(
    productId: string,
    policy: Policy,
    options: CallOptions = {},
  ): Promise<OrchestratorSchemas["ReplacedPolicy"]> {
    const args = { path: { product_id: productId }, body: { policy: wholePolicy(policy) }, ...options };
    return this.api.callRepeatable("put", "/products/{product_id}/policy", args);
  }

  /** All products in the order of their registration, without keys. */
  products(options: { readonly pageSize?: number } & CallOptions = {}): Pages<ProductSummary> {
    const { pageSize = PAGE_SIZE, ...rest } = options;
    return byOffset(pageSize, async (limit, offset) => {
      return (await this.api.call("get", "/products", { query: { limit, offset }, ...rest })).products;
    });
  }
}

/** The document requires all fields of a policy, and the service none. */
function wholePolicy(policy: Policy): OrchestratorSchemas["Policy"] {
  return policy as OrchestratorSchemas["Policy"];
}

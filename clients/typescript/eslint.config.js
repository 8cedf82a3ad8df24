import js from "@eslint/js";
import { defineConfig, globalIgnores } from "eslint/config";
import tseslint from "typescript-eslint";

export default defineConfig(
  globalIgnores(["dist", "build", "src/generated", "scripts", "*.config.js"]),
  js.configs.recommended,
  tseslint.configs.strictTypeChecked,
  tseslint.configs.stylisticTypeChecked,
  {
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      // `== null` stands for null and undefined, which the API means alike.
      eqeqeq: ["error", "always", { null: "ignore" }],
      "@typescript-eslint/no-unused-vars": ["error", { varsIgnorePattern: "^_" }],
      "max-lines": ["error", 500],
      "@typescript-eslint/consistent-type-imports": "error",
      // An index signature is read with brackets, so that the compiler sees it.
      "@typescript-eslint/dot-notation": "off",
    },
  },
  {
    // node:test runs what it was given by itself.
    files: ["test/**"],
    rules: {
      "@typescript-eslint/no-floating-promises": [
        "error",
        {
          allowForKnownSafeCalls: ["test", "suite", "describe", "it"].map((name) => ({
            from: "package",
            name,
            package: "node:test",
          })),
        },
      ],
    },
  },
);

/** Copies a text. Where the page came by plain HTTP there is no clipboard: then `element` is selected, to be copied by hand. */
export async function copy(text, element) {
  const copied = (await navigator.clipboard?.writeText(text).then(() => true, () => false)) ?? false;
  if (!copied) getSelection().selectAllChildren(element);
  return copied ? "Copied" : "Selected";
}

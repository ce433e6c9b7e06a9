// Elements, without markup: whatever a client called itself becomes a text node and nothing else.

/** Make an element. `properties` are set on it (`class`, `data` and `aria` are spelt out); children are nodes or texts. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name === "data") Object.assign(made.dataset, value);
    else if (name === "role" || name.startsWith("aria-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

/** Set a text, if it is another: what does not change is neither painted nor read out again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

/**
 * Bring the children of `container` in line with `items`: those that stay keep their elements, with focus, selection
 * and what was folded out. `make(item)` gives an element with a method `update(item)`.
 */
export function reconcile(container, items, keyOf, make) {
  const before = new Map([...container.children].map((child) => [child.dataset.key, child]));
  let place = container.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = before.get(key);
    if (child === undefined) {
      child = make(item);
      child.dataset.key = key;
    }
    before.delete(key);
    child.update(item);
    if (child === place) place = place.nextElementSibling;
    else container.insertBefore(child, place);
  }
  for (const gone of before.values()) {
    // The focus does not fall off the page with what it was on.
    if (gone.contains(document.activeElement)) document.getElementById("main").focus({ preventScroll: true });
    gone.remove();
  }
}

// Keeps the newest words in view, unless the reader has scrolled away from them.

const NEAR = 48;

export class Scroller {
  constructor(element, toEndButton) {
    this.element = element;
    this.button = toEndButton;
    this.following = true;
    this.last = 0;
    element.addEventListener("scroll", () => this.look(), { passive: true });
    toEndButton.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.follow()).observe(element);
  }

  look() {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    const left = scrollHeight - scrollTop - clientHeight;
    // The first step upwards counts, however small: text that grows must not pull the reader back.
    if (scrollTop < this.last && left > 1) this.following = false;
    else if (scrollTop > this.last && left < NEAR) this.following = true;
    this.last = scrollTop;
    this.button.hidden = left < NEAR;
  }

  /** After the text has grown. */
  follow() {
    this.look();
    if (this.following) this.element.scrollTop = this.element.scrollHeight;
    this.look();
  }

  toEnd() {
    this.following = true;
    this.last = this.element.scrollTop;
    this.follow();
  }
}

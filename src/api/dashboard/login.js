// Returns to the requested view after signing in: a browser keeps the fragment of the form's
// address through the redirect.

for (const form of document.forms) form.action += location.hash;

// The page that was asked for is shown after signing in: a browser keeps the fragment of the form's address through the redirect.

for (const form of document.forms) form.action += location.hash;
